// SPDX-License-Identifier: Apache-2.0
// `trireme` as a child of the test: started with its output in our hands, signalled, waited for.
#pragma once

#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

/// How long anything may take before a test gives up on it.
constexpr int kDeadlineMs = 120'000;

class Launched {
 public:
  /// Starts `trireme <arguments>`. Terminals, where given, become its standard output and error.
  explicit Launched(std::vector<std::string> arguments, int terminal = -1,
                    int terminal_of_errors = -1) {
    const char* folder = std::getenv("TRIREME_BIN");
    arguments.insert(arguments.begin(), std::string(folder == nullptr ? "." : folder) + "/trireme");
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    auto [output_here, output_end] = make_pipe();
    auto [error_here, error_end] = make_pipe();
    auto [alive_here, alive_end] = make_pipe();
    output_ = std::move(output_here);
    error_ = std::move(error_here);
    alive_ = std::move(alive_here);
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(terminal >= 0 ? terminal : output_end.get(), 1);
      ::dup2(terminal_of_errors >= 0 ? terminal_of_errors : error_end.get(), 2);
      ::fcntl(alive_end.get(), F_SETFD, 0);  // everything that trireme starts inherits this end
      ::setpgid(0, 0);
      ::setenv("TMPDIR", temporary_.path().c_str(), 1);  // logs of runs that fail stay there
      ::execv(words.front(), words.data());
      ::_exit(126);
    }
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  ~Launched() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

  pid_t process() const { return process_; }
  void signal(int number) const { ::kill(process_, number); }

  /// Stops reading, as `head` does.
  void close_output() { output_.reset(); }

  /// Reads standard output until `text` has come; returns everything so far.
  const std::string& await_output(const std::string& text) {
    return await(output_.get(), output, text);
  }
  const std::string& await_error(const std::string& text) {
    return await(error_.get(), error, text);
  }

  /// Reads everything and waits for the end; returns the exit code, or 128 plus the signal that
  /// killed trireme itself.
  int wait() {
    std::array<pollfd, 2> streams{{{.fd = output_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = error_.get(), .events = POLLIN, .revents = 0}}};
    while (streams[0].fd >= 0 || streams[1].fd >= 0) {
      if (::poll(streams.data(), streams.size(), kDeadlineMs) <= 0) {
        ADD_FAILURE() << "trireme did not end; so far:\n" << output << error;
        return -1;
      }
      if (streams[0].revents != 0 && !read_some(streams[0].fd, output)) streams[0].fd = -1;
      if (streams[1].revents != 0 && !read_some(streams[1].fd, error)) streams[1].fd = -1;
    }
    int status = 0;
    ::waitpid(std::exchange(process_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  /// Waits until no process is left of all that were started, directly or not: the last one closes
  /// the pipe.
  bool await_nothing_left() const {
    pollfd end{.fd = alive_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, kDeadlineMs) == 1;
  }

  /// Says whether nothing is left right now.
  bool is_nothing_left() const {
    pollfd end{.fd = alive_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) == 1;
  }

  /// The temporary directory of everything that was started.
  const std::filesystem::path& temporary() const { return temporary_.path(); }

  std::string output;
  std::string error;

 private:
  static std::pair<UniqueFd, UniqueFd> make_pipe() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }

  static bool read_some(int fd, std::string& text) {
    std::array<char, 1 << 16> buffer{};
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count <= 0) return false;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    return true;
  }

  const std::string& await(int fd, std::string& so_far, const std::string& text) {
    while (so_far.find(text) == std::string::npos) {
      pollfd stream{.fd = fd, .events = POLLIN, .revents = 0};
      if (::poll(&stream, 1, kDeadlineMs) <= 0 || !read_some(fd, so_far)) {
        ADD_FAILURE() << "'" << text << "' never came; so far:\n" << output << error;
        break;
      }
    }
    return so_far;
  }

  TemporaryFolder temporary_;
  pid_t process_ = -1;
  UniqueFd output_;
  UniqueFd error_;
  UniqueFd alive_;
};

/// `run <options> -- sh -c <script>`
inline std::vector<std::string> run_script(std::vector<std::string> options,
                                           const std::string& script) {
  options.insert(options.begin(), "run");
  for (const char* word : {"--", "sh", "-c"}) options.emplace_back(word);
  options.push_back(script);
  return options;
}

}  // namespace trireme::test
