// SPDX-License-Identifier: Apache-2.0
// A status that a thread of the test serves, and clients that say anything to it.
#pragma once

#include <trireme/launch/connect.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/status/status_server.h>

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace trireme::test {

/// The token of the status.
inline constexpr const char* kToken = "0123456789abcdef";

/// Serves a status until destruction.
class RunningStatus {
 public:
  explicit RunningStatus(launch::StatusServerOptions options = {}) {
    options.listening = launch::listen_at("127.0.0.1", std::nullopt);
    port_ = options.listening.port;
    if (options.tls == nullptr) options.token = kToken;
    server_.emplace(std::move(options), [this] {
      launch::RunStatus status;
      status.run = std::string(bytes_of_name, 'x');
      status.state = launch::RunState::kRunning;
      return status;
    });
    thread_ = std::thread([this] { serve(); });
  }
  RunningStatus(const RunningStatus&) = delete;
  RunningStatus& operator=(const RunningStatus&) = delete;
  ~RunningStatus() {
    is_over_ = true;
    thread_.join();
  }

  /// The size of the name of the run, and so of a page.
  std::atomic<std::size_t> bytes_of_name = 10;

  launch::HostAndPort place() const { return {.host = "127.0.0.1", .port = port_}; }

  UniqueFd connect() const {
    std::string problem;
    UniqueFd fd = launch::try_connect(
        place(), std::chrono::steady_clock::now() + std::chrono::seconds(60), problem);
    if (!fd) throw std::runtime_error(problem);
    return fd;
  }

  /// Returns the number of connections that were refused for a cause.
  std::int64_t refused(const std::string& cause) const {
    const std::lock_guard lock(mutex_);
    const auto found = server_->refused().find(cause);
    return found == server_->refused().end() ? 0 : found->second;
  }

  /// Waits until a number of connections were refused for a cause.
  void await_refused(const std::string& cause, std::int64_t count) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (refused(cause) < count && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
  }

 private:
  void serve() {
    auto next = std::chrono::steady_clock::now();
    while (!is_over_) {
      pollfd waited{.fd = server_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&waited, 1, 20);
      const std::lock_guard lock(mutex_);
      server_->handle();
      if (std::chrono::steady_clock::now() < next) continue;
      server_->drop_late();
      next += std::chrono::milliseconds(20);
    }
  }

  int port_ = 0;
  mutable std::mutex mutex_;
  std::optional<launch::StatusServer> server_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

/// Sends bytes and returns all that comes until the other side closes the connection.
inline std::string talk(const UniqueFd& fd, const std::string& bytes) {
  ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::string all;
  std::array<char, 1 << 16> buffer{};
  while (true) {
    pollfd waited{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, 60'000) != 1) throw std::runtime_error("nothing came");
    const ssize_t count = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) return all;
    all.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

/// Returns a request with the token.
inline std::string request_for(const std::string& path) {
  return "GET " + path + "?token=" + kToken + " HTTP/1.1\r\nHost: a\r\n\r\n";
}

}  // namespace trireme::test
