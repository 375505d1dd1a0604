// SPDX-License-Identifier: Apache-2.0
// A scheduler in a thread of the test, and what workers and strangers do with it.
#pragma once

#include <trireme/launch/connect.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/scheduler/scheduler.h>
#include <trireme/launch/scheduler/worker_connection.h>

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace trireme::test {

using launch::EndRequest;
using launch::HostAndPort;
using launch::SchedulerOptions;
using launch::ServedStore;
using launch::StoreAddress;
using launch::TlsFiles;
using launch::WorkerConnection;
using launch::WorkerOptions;

/// A secret of a run.
inline constexpr const char* kSecretOfRun = "0123456789abcdef";
/// How long anything may take before a test gives up on it.
inline constexpr int kDeadlineMs = 120'000;

/// A store that nobody uses, whose socket stays open.
class NoStore : public ServedStore {
 public:
  explicit NoStore(StoreAddress place) : place_(std::move(place)) {}
  int fd() const override { return -1; }
  std::string failure() override { return {}; }

 private:
  StoreAddress place_;
};

/// A scheduler in a thread, at a free port.
class RunningScheduler {
 public:
  explicit RunningScheduler(int workers, const std::string& secret = "",
                            std::chrono::milliseconds timeout = std::chrono::seconds(60),
                            std::chrono::milliseconds patience = std::chrono::seconds(60),
                            const std::string& host = "127.0.0.1",
                            std::optional<TlsFiles> tls = std::nullopt) {
    // A free port, which is free again for the scheduler.
    place_ = {.host = host, .port = launch::listen_at(host, std::nullopt).port};
    options_ = {.place = place_,
                .workers = workers,
                .timeout = timeout,
                .grace = std::chrono::milliseconds(0),
                .patience = patience,
                .secret = secret,
                .tls = std::move(tls),
                .start_store = [this](StoreAddress place) {
                  secret_of_store_ = place.secret;
                  return std::make_unique<NoStore>(std::move(place));
                }};
    code_ = std::async(std::launch::async, [this] { return launch::run_scheduler(options_); });
  }

  const HostAndPort& place() const { return place_; }
  /// Waits for the end of the run, and returns its code.
  int wait() { return code_.get(); }
  /// The secret with which the store was started. Read after wait().
  const std::string& secret_of_store() const { return secret_of_store_; }

  WorkerOptions worker(const std::string& node_id = "") const {
    return {.scheduler = place_,
            .secret = options_.secret,
            .workers = std::nullopt,
            .node_id = node_id,
            .program = {.path = "/bin/train", .bytes = 10, .checksum = "aa"},
            .tls = options_.tls,
            .timeout = std::chrono::seconds(60)};
  }

  /// Connects as soon as the scheduler listens.
  UniqueFd connect() const {
    std::string problem;
    UniqueFd fd;
    while (!fd)
      fd = launch::try_connect(place_, std::chrono::steady_clock::now() + std::chrono::seconds(60),
                               problem);
    return fd;
  }

 private:
  HostAndPort place_;
  SchedulerOptions options_;
  std::string secret_of_store_;
  std::future<int> code_;
};

/// Joins the world of a scheduler, in a thread.
inline std::future<WorkerConnection> join(const WorkerOptions& options) {
  return std::async(std::launch::async, [options] { return WorkerConnection(options); });
}

/// Says that a rank of a worker has ended.
inline void end(WorkerConnection& worker, int code) {
  worker.say_ended({.rank = worker.place().first_rank,
                    .process = 1,
                    .code = code,
                    .how = "exited with code " + std::to_string(code)});
}

/// Waits until the scheduler asks a worker to end.
inline EndRequest await_request(WorkerConnection& worker) {
  while (true) {
    if (const auto request = worker.receive()) return *request;
    pollfd waited{.fd = worker.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, kDeadlineMs) != 1) throw std::runtime_error("no request came");
  }
}

/// Waits until the other side has closed the connection.
inline bool await_end(const UniqueFd& fd) {
  std::array<char, 4096> buffer{};
  while (true) {
    pollfd waited{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, kDeadlineMs) != 1) return false;
    if (::recv(fd.get(), buffer.data(), buffer.size(), 0) <= 0) return true;
  }
}

}  // namespace trireme::test
