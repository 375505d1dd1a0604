// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/exit_report.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/text.h>

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace trireme::launch {
namespace {

// Returns the start of a long line, and does not cut inside a UTF-8 character.
std::string cut_line(const std::string& line) {
  constexpr std::size_t kLongest = 1000;
  if (line.size() <= kLongest) return line;
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0U) == 0x80U) --end;
  return join_message(line.substr(0, end), " … (", line.size() - end, " more bytes)");
}

// `rank 3 of 4` becomes `rank # of 4`, `ranks 0-2` `ranks #-2`.
std::string without_numbers_of_ranks(const std::string& text) {
  constexpr std::array<std::string_view, 4> kBefore{"rank ", "ranks ", "process ", "pid "};
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    result += text[at++];
    if (std::ranges::none_of(kBefore, [&](auto word) { return result.ends_with(word); })) continue;
    const std::size_t end = std::min(text.find_first_not_of("0123456789", at), text.size());
    if (end > at) result += '#';
    at = end;
  }
  return result;
}

}  // namespace

std::string describe_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  if (name == nullptr) return join_message("signal ", signal);
  std::string description = ::sigdescr_np(signal);
  description.front() = ascii_lower(description.front());
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
  bool is_among_frames = false;
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    line.erase(0, line.rfind('\r') + 1);
    // Stack frames would push the cause out. Lines that look like frames but do not follow the
    // first frame belong to the program itself.
    is_among_frames = is_hidden_frame(line) && (is_among_frames || !line.starts_with("frame #"));
    if (!is_among_frames) tail.push_back(line);
  }
  // Reading may have started inside a line, which is left out then.
  const bool begins_inside_a_line = start > 0 && tail.size() > 1;
  const std::size_t wanted =
      std::min(static_cast<std::size_t>(lines), tail.size() - (begins_inside_a_line ? 1 : 0));
  TextWriter text;
  for (auto line = tail.end() - static_cast<std::ptrdiff_t>(wanted); line != tail.end(); ++line) {
    text << "  | " << cut_line(*line) << '\n';
  }
  return text.str();
}

std::vector<std::filesystem::path> find_dumps(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> dumps;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("trireme-dump-") && name.ends_with(".json"))
      dumps.push_back(entry->path());
  }
  return dumps;
}

Failure failure_of(const std::filesystem::path& log) {
  constexpr int kLines = 60;  // of an exception, what is nested in it and its hints
  const std::string all = last_lines(log, kLines);
  std::size_t begin = all.rfind(": uncaught ");
  const bool is_exception = begin != std::string::npos;
  if (!is_exception) begin = all.size() < 2 ? std::string::npos : all.size() - 2;
  begin = begin == std::string::npos ? 0 : all.rfind('\n', begin) + 1;
  return {.text = without_numbers_of_ranks(all.substr(begin)), .is_exception = is_exception};
}

std::string describe_count(std::size_t count, std::string_view thing) {
  return join_message(count, " ", thing, count == 1 ? "" : "s");
}

std::string describe_ranks(const std::vector<int>& ascending) {
  TextWriter text;
  int ranges = 0;
  for (std::size_t first = 0; first < ascending.size(); ++ranges) {
    if (ranges == 16) {
      text << ", …";
      break;
    }
    std::size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text << (first == 0 ? "" : ", ") << ascending[first];
    if (last > first) text << "-" << ascending[last];
    first = last + 1;
  }
  return ascending.empty() ? "none" : text.str();
}

}  // namespace trireme::launch
