// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/journal.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace trireme::launch {
namespace {

// A lock of the process: no child inherits it, and the kernel releases it with the process.
void lock(int fd, const std::filesystem::path& path) {
  struct flock wanted{};
  wanted.l_type = F_WRLCK;
  wanted.l_whence = SEEK_SET;
  if (::fcntl(fd, F_SETLK, &wanted) == 0) return;
  const int error_number = errno;
  if (error_number != EACCES && error_number != EAGAIN) {
    throw ConfigError(
        join_message("cannot lock the journal ", path.string(), ": ", describe_errno(error_number)),
        "give a file on a file system that has locks");
  }
  ::fcntl(fd, F_GETLK, &wanted);
  throw ConfigError(
      join_message("the journal ", path.string(), " is in use by process ", wanted.l_pid),
      "each run needs a journal of its own; a scheduler that takes up a run is "
      "started after the one before has ended");
}

}  // namespace

Journal::Journal(std::filesystem::path file)
    : path_(std::move(file)),
      file_(::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644)) {
  struct stat found{};
  if (!file_ || ::fstat(file_.get(), &found) != 0) {
    throw ConfigError(
        join_message("cannot open the journal ", path_.string(), ": ", describe_errno(errno)),
        "give a file in a folder that exists and may be written to");
  }
  if (!S_ISREG(found.st_mode)) {
    throw ConfigError(join_message("the journal ", path_.string(), " is no regular file"),
                      "give a file that can be appended to");
  }
  lock(file_.get(), path_);
  char last = '\n';
  if (found.st_size > 0 && ::pread(file_.get(), &last, 1, found.st_size - 1) == 1)
    is_cut_ = last != '\n';
}

void Journal::write(const std::string& event, const JournalFields& fields) {
  if (lost_ > 0 && append("lost", {{"lines", lost_}})) lost_ = 0;
  if (lost_ > 0 || !append(event, fields)) ++lost_;
}

bool Journal::append(const std::string& event, const JournalFields& fields) {
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  constexpr double kThousand = 1000;
  nlohmann::ordered_json json{{"time", static_cast<double>(now.count()) / kThousand},
                              {"event", event}};
  for (const auto& [name, value] : fields)
    std::visit([&, key = name](const auto& one) { json[key] = one; }, value);
  std::string line = is_cut_ ? "\n" : "";
  line += json.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                    nlohmann::ordered_json::error_handler_t::replace);
  line += '\n';
  ssize_t written = 0;
  do {
    written = ::write(file_.get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) {
    is_cut_ = false;
    return true;
  }
  error_ = written < 0 ? errno : ENOSPC;
  is_cut_ = is_cut_ || written > 0;
  return false;
}

}  // namespace trireme::launch
