// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/provenance.h>

#include <trireme/base/input_file.h>
#include <trireme/base/text.h>

#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;  // packed-refs may have many lines

std::string read(const fs::path& path) {
  InputFile file = open_input(path);
  if (!file) return {};
  std::string text = read_text(file, kMostBytes).value_or("");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

bool is_revision(std::string_view text) {
  return (text.size() == 40 || text.size() == 64) &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Returns the folder `.git`, or the folder that a file of that name points to (in a linked work
// tree or a submodule).
std::optional<fs::path> git_folder(fs::path folder) {
  std::error_code failure;
  for (;; folder = folder.parent_path()) {
    fs::path git = folder / ".git";
    if (fs::is_directory(git, failure)) return git;
    if (fs::is_regular_file(git, failure)) {
      constexpr std::string_view kKey = "gitdir: ";
      const std::string text = read(git);
      if (!text.starts_with(kKey)) return {};
      return folder / text.substr(kKey.size());
    }
    if (folder == folder.parent_path()) return {};
  }
}

// Returns the commit of a branch, from its own file or from the file of packed references.
std::optional<std::string> commit_of(const fs::path& git, const std::string& reference) {
  if (std::string text = read(git / reference); is_revision(text)) return text;
  const std::string packed = read(git / "packed-refs");
  const std::size_t found = packed.find(" " + reference + "\n");
  const std::size_t end = found == std::string::npos && packed.ends_with(" " + reference)
                              ? packed.size() - reference.size() - 1
                              : found;
  if (end == std::string::npos) return {};
  const std::size_t line = packed.rfind('\n', end);
  const std::size_t begin = line == std::string::npos ? 0 : line + 1;
  const std::string text = packed.substr(begin, end - begin);
  return is_revision(text) ? std::optional(text) : std::nullopt;
}

}  // namespace

std::string command_line() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  std::string text;
  for (std::string argument; std::getline(stream, argument, '\0');)
    text += (text.empty() ? "" : " ") + shell_quoted(argument);
  return text;
}

std::optional<std::string> git_revision(const fs::path& folder) {
  std::error_code failure;
  const fs::path absolute = fs::absolute(folder, failure);
  const auto git = failure ? std::nullopt : git_folder(absolute);
  if (!git) return {};
  constexpr std::string_view kKey = "ref: ";
  std::string head = read(*git / "HEAD");
  if (is_revision(head)) return head;
  if (!head.starts_with(kKey)) return {};
  const std::string reference = head.substr(kKey.size());
  if (reference.find("..") != std::string::npos) return {};
  if (const auto commit = commit_of(*git, reference)) return commit;
  const std::string common = read(*git / "commondir");  // exists in a linked work tree
  return common.empty() ? std::nullopt : commit_of(*git / common, reference);
}

}  // namespace trireme::report
