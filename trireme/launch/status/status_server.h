// SPDX-License-Identifier: Apache-2.0
// Answers requests for the status of a run by HTTP/1.1, or HTTPS. It has no thread: an event loop
// polls one descriptor for it. Whoever connects costs a bounded amount of memory and of work at a
// time, and is counted if he is refused.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/status/run_status.h>
#include <trireme/launch/tls/tls_session.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace trireme::launch {

/// The options of a StatusServer.
struct StatusServerOptions {
  ListeningSocket listening{};  ///< the socket to which clients connect
  const TlsContext* tls =
      nullptr;          ///< with it, clients need a certificate; must outlive the server
  std::string token{};  ///< what clients without TLS must know
  /// The number of connections at a time. The oldest one makes room for another.
  std::size_t most_connections = 128;
  /// The time in which a request must have come, the handshake of TLS included.
  std::chrono::milliseconds request_time{std::chrono::seconds{5}};
  /// The time in which an answer must have been taken.
  std::chrono::milliseconds answer_time{std::chrono::seconds{30}};
};

/// Serves the status of one run. Not thread-safe.
class StatusServer {
 public:
  /// Starts to serve. Throws ConfigError if there are no free descriptors.
  /// @param options see there.
  /// @param status returns the status. It is called at most a few times a second.
  StatusServer(StatusServerOptions options, std::function<RunStatus()> status);
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  /// Returns the descriptor that is readable if handle() has something to do.
  int fd() const { return epoll_.get(); }
  /// Returns the port.
  int port() const { return options_.listening.port; }
  /// Serves clients. Never blocks, and returns after a bounded amount of work.
  void handle();
  /// Drops connections whose time is over. Call it about once a second.
  void drop_late();

  /// Returns the number of requests that were answered, by path.
  const std::map<std::string, std::int64_t>& answered() const { return answered_; }
  /// Returns the number of connections that were refused or dropped, by the cause.
  const std::map<std::string, std::int64_t>& refused() const { return refused_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::uint64_t;
  struct Connection;
  struct Cached {
    std::shared_ptr<const std::string> body;
    Clock::time_point made;
  };

  void accept_all();
  void make_room();
  void serve(Key key);
  bool read_some(Connection& connection);
  void take(Connection& connection, std::string_view bytes);
  void answer(Connection& connection);
  void refuse(Connection& connection, int status, const std::string& cause,
              const std::string& text);
  void begin_answer(Connection& connection, int status, std::string_view type,
                    std::shared_ptr<const std::string> body, bool wants_body);
  bool send_some(Connection& connection);
  void drop(Key key, const char* cause);
  void erase(Key key);
  void listen(bool listens);
  std::shared_ptr<const std::string> body_of(const std::string& path);

  StatusServerOptions options_;
  std::function<RunStatus()> status_;
  UniqueFd epoll_;
  std::map<Key, std::unique_ptr<Connection>> connections_;  // the oldest first
  Key next_key_ = 1;
  bool is_listening_ = true;
  std::map<std::string, Cached> cache_;
  std::map<std::string, std::int64_t> answered_;
  std::map<std::string, std::int64_t> refused_;
};

}  // namespace trireme::launch
