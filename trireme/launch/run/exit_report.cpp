// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/exit_report.h>

#include <trireme/base/error.h>

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

namespace trireme::launch {

std::string describe_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  if (name == nullptr) return join_message("signal ", signal);
  std::string description = ::sigdescr_np(signal);
  description.front() =
      static_cast<char>(std::tolower(static_cast<unsigned char>(description.front())));
  return join_message("SIG", name, " (", description, ")");
}

std::string describe_exit(int wait_status) {
  if (WIFEXITED(wait_status)) return join_message("exited with code ", WEXITSTATUS(wait_status));
  return join_message("was killed by ", describe_signal(WTERMSIG(wait_status)),
                      WCOREDUMP(wait_status) ? ", core dumped" : "");
}

int exit_code(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

std::string_view exit_hint(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return "";
  switch (WTERMSIG(wait_status)) {
    case SIGKILL:
      return "somebody killed it; the kernel does when memory runs out (see `dmesg` and the memory "
             "limit of this "
             "machine or container)";
    case SIGBUS:
      return "often a full /dev/shm or a file that shrank while it was mapped";
    case SIGILL:
      return "often a program built for a newer processor than this one";
    default:
      return "";
  }
}

std::string last_lines(const std::filesystem::path& file, int lines) {
  constexpr std::streamoff kLongestTail = 1 << 16;
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  const std::streamoff size = stream.tellg();
  const std::streamoff start = std::max<std::streamoff>(0, size - kLongestTail);
  stream.seekg(start);
  std::vector<std::string> tail;
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    tail.push_back(line.substr(line.rfind('\r') + 1));
  }
  const bool begins_inside_a_line = start > 0 && tail.size() > 1;
  const std::size_t wanted =
      std::min(static_cast<std::size_t>(lines), tail.size() - (begins_inside_a_line ? 1 : 0));
  std::ostringstream text;
  for (auto line = tail.end() - static_cast<std::ptrdiff_t>(wanted); line != tail.end(); ++line) {
    text << "  | " << *line << '\n';
  }
  return text.str();
}

}  // namespace trireme::launch
