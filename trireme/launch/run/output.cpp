// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/output.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

namespace trireme::launch {
namespace {

[[noreturn]] void refuse(std::string_view what, int error_number) {
  throw ConfigError(join_message("cannot ", what, ": ", describe_errno(error_number)),
                    "check the limits of this user and machine (ulimit -a)");
}

UniqueFd open_log(const std::filesystem::path& path, bool keeps_log) {
  // O_NONBLOCK: opening a FIFO without a reader would otherwise block for ever.
  const int truncate = keeps_log ? 0 : O_TRUNC;
  UniqueFd log(::open(path.c_str(),
                      O_WRONLY | O_CREAT | truncate | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
                      0644));
  const int failure = errno;
  struct stat status{};
  const bool is_other =
      ::lstat(path.c_str(), &status) == 0 && !S_ISLNK(status.st_mode) && !S_ISREG(status.st_mode);
  if (!log || is_other || ::fstat(log.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw ConfigError(
        join_message("cannot write the log file ", path.string(), ": ",
                     is_other || log ? "it is no regular file" : describe_errno(failure)),
        "give a folder that may be written to by --log-dir");
  }
  ::fcntl(log.get(), F_SETFL, O_APPEND);  // the rank inherits it; blocking from here on
  return log;
}

UniqueFd duplicate(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!copy) refuse("duplicate a descriptor", errno);
  return copy;
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

struct Channel {
  UniqueFd ours;
  UniqueFd theirs;
};

Channel make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) refuse("make a pipe", errno);
  Channel channel{UniqueFd(ends[0]), UniqueFd(ends[1])};
  set_nonblocking(channel.ours.get());
  return channel;
}

Channel make_pseudo_terminal() {
  Channel channel;
  channel.ours.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  std::array<char, 64> name{};
  if (!channel.ours || ::grantpt(channel.ours.get()) != 0 || ::unlockpt(channel.ours.get()) != 0 ||
      ::ptsname_r(channel.ours.get(), name.data(), name.size()) != 0) {
    refuse("make a pseudo-terminal", errno);
  }
  channel.theirs.reset(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!channel.theirs) refuse("open a pseudo-terminal", errno);
  // The real terminal already turns "\n" into "\r\n". Doing it twice is wrong, and log files should
  // have neither.
  termios settings{};
  ::tcgetattr(channel.theirs.get(), &settings);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  ::tcsetattr(channel.theirs.get(), TCSANOW, &settings);
  set_nonblocking(channel.ours.get());
  copy_window_size(channel.ours.get());
  return channel;
}

// Connects rank 0 so that its output looks the same as without a launcher: through a
// pseudo-terminal for each stream that is a terminal here, and through a pipe otherwise.
void connect_as_it_is(RankOutput& rank, Consoles& consoles) {
  const std::array<bool, 2> is_terminal{::isatty(1) == 1, ::isatty(2) == 1};
  UniqueFd terminal;
  if (is_terminal[0] || is_terminal[1]) {
    Channel channel = make_pseudo_terminal();
    terminal = std::move(channel.theirs);
    rank.relays.emplace_back(std::move(channel.ours), rank.log.get(),
                             is_terminal[0] ? consoles.output : consoles.error, "");
  }
  for (const std::size_t stream : {0U, 1U}) {
    UniqueFd& end = stream == 0 ? rank.output : rank.error;
    if (is_terminal.at(stream)) {
      end = duplicate(terminal);
      continue;
    }
    Channel channel = make_pipe();
    end = std::move(channel.theirs);
    rank.relays.emplace_back(std::move(channel.ours), rank.log.get(),
                             stream == 0 ? consoles.output : consoles.error, "");
  }
}

void connect_with_prefix(RankOutput& rank, const std::string& prefix, Consoles& consoles) {
  Channel output = make_pipe();
  Channel error = make_pipe();
  rank.output = std::move(output.theirs);
  rank.error = std::move(error.theirs);
  rank.relays.emplace_back(std::move(output.ours), rank.log.get(), consoles.output, prefix);
  rank.relays.emplace_back(std::move(error.ours), rank.log.get(), consoles.error, prefix);
}

}  // namespace

void say(Consoles& consoles, const std::string& line) {
  const bool is_amid_line = consoles.error.is_terminal() &&
                            (consoles.output.is_amid_line() || consoles.error.is_amid_line());
  consoles.error.write(join_message(is_amid_line ? "\n" : "", "trireme: ", line, "\n"));
  consoles.output.begin_line();
}

Relay::Relay(UniqueFd source, int log, Console& console, std::string prefix)
    : source_(std::move(source)), log_(log), console_(&console), prefix_(std::move(prefix)) {}

Relay::Result Relay::pump() {
  std::array<char, 1 << 16> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): read() fills
  const ssize_t count = ::read(source_.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Result::kNothingNow;
  if (count <= 0) return Result::kEnd;  // the end of a pseudo-terminal is the error EIO
  const std::string_view text(buffer.data(), static_cast<std::size_t>(count));
  for (std::string_view rest = text; !rest.empty() && log_ >= 0;) {
    const ssize_t written = ::write(log_, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      // A full disk must not end a run that may have been running for days.
      console_->write(
          join_message("trireme: a log file is cut short here: ", describe_errno(errno), "\n"));
      log_ = -1;
      is_log_cut_ = true;
    }
  }
  show(text);
  return Result::kMore;
}

void Relay::show(std::string_view text) {
  if (prefix_.empty()) return console_->write(text);
  constexpr std::size_t kLongestLine = 1 << 16;
  std::string lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    unfinished_line_ += text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (end == std::string_view::npos && unfinished_line_.size() < kLongestLine) break;
    lines += prefix_ + unfinished_line_ + "\n";
    unfinished_line_.clear();
  }
  console_->write(lines);
}

void Relay::close() {
  if (!unfinished_line_.empty()) show("\n");
  source_.reset();
}

RankOutput open_output(int rank, const std::filesystem::path& folder, bool keeps_log, Output mode,
                       Consoles& consoles) {
  RankOutput output;
  output.log_path = folder / join_message("rank_", rank, ".log");
  output.log = open_log(output.log_path, keeps_log);
  if (mode == Output::kAll) {
    connect_with_prefix(output, join_message("[rank ", rank, "] "), consoles);
  } else if (mode == Output::kFirst && rank == 0) {
    connect_as_it_is(output, consoles);
  } else {
    output.output = duplicate(output.log);
    output.error = duplicate(output.log);
  }
  return output;
}

void write_to_log(const RankOutput& output, std::string_view line) {
  static_cast<void>(!::write(output.log.get(), line.data(), line.size()));
}

void copy_window_size(int pseudo_terminal) {
  winsize size{};
  for (const int fd : {1, 2}) {
    if (::ioctl(fd, TIOCGWINSZ, &size) != 0) continue;
    ::ioctl(pseudo_terminal, TIOCSWINSZ, &size);
    return;
  }
}

}  // namespace trireme::launch
