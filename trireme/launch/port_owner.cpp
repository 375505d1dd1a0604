// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/port_owner.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/process_tree.h>

#include <charconv>
#include <fstream>
#include <optional>
#include <set>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

// Returns the link targets that mark a descriptor of one of these listening sockets:
// `socket:[12345]`.
std::set<std::string> listening_sockets(int port, const fs::path& table) {
  std::set<std::string> links;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // column titles
  while (std::getline(file, line)) {
    // slot: local_address:port remote_address:port state queues timer retransmits user timeout
    // inode …
    TextReader fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    const auto colon = local.rfind(':');
    constexpr std::string_view kListening = "0A";
    if (!fields || colon == std::string::npos || state != kListening) continue;
    int local_port = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), local_port, 16);
    if (local_port == port) links.insert(join_message("socket:[", inode, "]"));
  }
  return links;
}

bool holds_any(const fs::path& process, const std::set<std::string>& links) {
  std::error_code failure;
  for (const auto& descriptor : fs::directory_iterator(process / "fd", failure)) {
    std::error_code unreadable;
    if (links.contains(fs::read_symlink(descriptor.path(), unreadable).string())) return true;
  }
  return false;
}

}  // namespace

std::string describe_port_owner(int port, const fs::path& proc_root) {
  auto links = listening_sockets(port, proc_root / "net" / "tcp");
  links.merge(listening_sockets(port, proc_root / "net" / "tcp6"));
  if (links.empty()) return "";
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(proc_root, failure)) {
    const std::string id = entry.path().filename().string();
    if (id.find_first_not_of("0123456789") != std::string::npos || !holds_any(entry.path(), links))
      continue;
    const auto process = read_process(id, proc_root);
    return join_message("process ", id, " (", process ? process->name : "unknown program", ")");
  }
  return "";
}

}  // namespace trireme::launch
