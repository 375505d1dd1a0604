// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/status_server.h>

#include <trireme/base/error.h>
#include <trireme/launch/hmac.h>
#include <trireme/launch/status/http_request.h>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::launch {
namespace {

// A handshake of TLS with its certificates, and a request.
constexpr std::size_t kMostBytesOfClient = std::size_t{64} << 10;
constexpr std::size_t kPiece = std::size_t{16} << 10;
// How long an answer is kept for those who ask for the same.
constexpr std::chrono::milliseconds kFresh{250};
// The time in which a client must close its connection after the answer.
constexpr std::chrono::seconds kToClose{1};
constexpr std::uint64_t kListening = 0;
constexpr char kBeginsTls = 22;

constexpr const char* kPlainText = "text/plain; charset=utf-8";

const char* type_of(const std::string& path) {
  if (path == "/metrics") return "text/plain; version=0.0.4; charset=utf-8";
  if (path == "/status.json") return "application/json";
  return "text/html; charset=utf-8";
}

}  // namespace

struct StatusServer::Connection {
  enum class State { kReading, kAnswering, kClosing };

  UniqueFd socket;
  std::unique_ptr<TlsSession> tls;
  Clock::time_point deadline;
  State state = State::kReading;
  std::string received{};  // of the request
  std::size_t bytes_of_client = 0;
  std::string unsent{};  // encrypted, or the head
  std::shared_ptr<const std::string> body{};
  std::size_t body_sent = 0;
};

StatusServer::StatusServer(StatusServerOptions options, std::function<RunStatus()> status)
    : options_(std::move(options)),
      status_(std::move(status)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  TRIREME_CHECK(options_.tls != nullptr || !options_.token.empty());
  ::fcntl(options_.listening.fd.get(), F_SETFL, O_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListening;
  if (!epoll_ ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, options_.listening.fd.get(), &event) != 0) {
    throw ConfigError(join_message("cannot poll the socket of the status: ", describe_errno(errno)),
                      "check ulimit -n");
  }
}

StatusServer::~StatusServer() = default;

void StatusServer::handle() {
  std::array<epoll_event, 32> events{};
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  for (int i = 0; i < count; ++i) {
    const Key key = events.at(static_cast<std::size_t>(i)).data.u64;
    key == kListening ? accept_all() : serve(key);
  }
}

void StatusServer::accept_all() {
  constexpr int kMostAtOnce = 16;
  for (int i = 0; i < kMostAtOnce; ++i) {
    UniqueFd socket(
        ::accept4(options_.listening.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const bool has_no_descriptor = !socket && (errno == EMFILE || errno == ENFILE);
    if (has_no_descriptor && !connections_.empty()) {
      drop(connections_.begin()->first, "no free descriptor");
      continue;
    }
    // Without a pause, those who wait would wake this process again and again.
    if (has_no_descriptor) listen(false);
    if (!socket) return;
    make_room();
    const Key key = next_key_++;
    auto connection = std::make_unique<Connection>(
        Connection{.socket = std::move(socket),
                   .tls = options_.tls == nullptr ? nullptr : options_.tls->accept(),
                   .deadline = Clock::now() + options_.request_time});
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = key;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket.get(), &event) == 0) {
      connections_.emplace(key, std::move(connection));
    } else {
      ++refused_["not pollable"];
    }
  }
}

// Drops the oldest connection whose request is not complete, or else the oldest one.
void StatusServer::make_room() {
  if (connections_.size() < options_.most_connections) return;
  const auto reads = std::ranges::find_if(connections_, [](const auto& one) {
    return one.second->state == Connection::State::kReading;
  });
  drop((reads == connections_.end() ? connections_.begin() : reads)->first, "too many at once");
}

void StatusServer::drop(Key key, const char* cause) {
  ++refused_[cause];
  erase(key);
}

// A process that was forked meanwhile has a copy of the descriptor, so that closing it alone would
// neither end the connection nor the watch.
void StatusServer::erase(Key key) {
  const int fd = connections_.at(key)->socket.get();
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  ::shutdown(fd, SHUT_RDWR);
  connections_.erase(key);
}

void StatusServer::listen(bool listens) {
  is_listening_ = listens;
  epoll_event event{};
  event.events = listens ? std::uint32_t{EPOLLIN} : 0U;
  event.data.u64 = kListening;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, options_.listening.fd.get(), &event);
}

void StatusServer::drop_late() {
  if (!is_listening_) listen(true);
  std::vector<Key> late;
  for (const auto& [key, connection] : connections_) {
    if (Clock::now() >= connection->deadline) late.push_back(key);
  }
  for (const Key key : late) {
    switch (connections_.at(key)->state) {
      case Connection::State::kReading:
        drop(key, "no request in time");
        break;
      case Connection::State::kAnswering:
        drop(key, "answer not taken in time");
        break;
      case Connection::State::kClosing:
        erase(key);
    }
  }
}

// Reads once, and sends once: others have their turn in between.
void StatusServer::serve(Key key) {
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  const bool is_open =
      connection.state == Connection::State::kAnswering ? true : read_some(connection);
  if (!is_open || !send_some(connection)) {
    erase(key);
    return;
  }
  epoll_event event{};
  event.events = connection.state == Connection::State::kAnswering || !connection.unsent.empty()
                     ? EPOLLOUT
                     : EPOLLIN;
  event.data.u64 = key;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
}

// Reads what has come, 4 KiB at most. Returns false if the connection is to be dropped.
bool StatusServer::read_some(Connection& connection) {
  std::array<char, 4096> buffer{};
  const ssize_t count = ::recv(connection.socket.get(), buffer.data(), buffer.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (count == 0) {
    // Whoever checks whether the port is open says nothing and goes.
    const bool is_cut =
        connection.state == Connection::State::kReading && connection.bytes_of_client > 0;
    if (is_cut) ++refused_["gone before the end of its request"];
    return false;
  }
  connection.bytes_of_client += static_cast<std::size_t>(count);
  if (connection.bytes_of_client > kMostBytesOfClient) {
    if (connection.state == Connection::State::kReading) ++refused_["too many bytes"];
    return false;
  }
  if (connection.state == Connection::State::kReading)
    take(connection, {buffer.data(), static_cast<std::size_t>(count)});
  return true;
}

void StatusServer::take(Connection& connection, std::string_view bytes) {
  const bool is_first = connection.bytes_of_client == bytes.size();
  if (is_first && (bytes.front() == kBeginsTls) != (connection.tls != nullptr)) {
    if (connection.tls == nullptr) {
      ++refused_["encrypted"];
      connection.body = std::make_shared<const std::string>();
      connection.state = Connection::State::kAnswering;  // which is empty
      return;
    }
    connection.tls.reset();
    return refuse(connection, 400, "not encrypted",
                  "this status is served by HTTPS only, to clients with a certificate of the run");
  }
  const std::size_t before = connection.received.size();
  if (connection.tls != nullptr) {
    connection.received += connection.tls->receive(bytes);
    if (const auto& failure = connection.tls->failure()) {
      ++refused_[std::string(text_of(failure->cause))];
      connection.unsent += connection.tls->take_unsent();
      connection.body = std::make_shared<const std::string>();
      connection.state = Connection::State::kAnswering;  // the alert
      connection.deadline = Clock::now() + options_.answer_time;
      return;
    }
  } else {
    connection.received += bytes;
  }
  // A request that comes byte by byte is not looked at for each of them.
  constexpr std::string_view kEnd = "\r\n\r\n";
  const std::size_t from = before < kEnd.size() ? 0 : before - kEnd.size();
  const bool may_be_told = before == 0 || connection.received.size() > kLongestRequest ||
                           connection.received.find(kEnd, from) != std::string::npos;
  if (!connection.received.empty() && may_be_told) answer(connection);
}

void StatusServer::answer(Connection& connection) {
  const auto request = parse_request(connection.received);
  if (!request) return;
  if (request->refusal != 0) {
    return refuse(connection, request->refusal, "a malformed or unknown request",
                  join_message(status_words(request->refusal), ": send GET ",
                               "/, /metrics or /status.json by HTTP/1.1 without a body"));
  }
  const std::string_view token =
      request->bearer.empty() ? value_in_query(request->query, "token") : request->bearer;
  // The codes are compared, in constant time.
  if (options_.tls == nullptr && !is_code(sha256(options_.token), bytes_of(sha256(token)))) {
    return refuse(connection, 401, token.empty() ? "no token" : "another token",
                  "the token of the run is missing or wrong: open the address in the file "
                  "status_url of the run, or send the header Authorization: Bearer TOKEN");
  }
  auto body = body_of(request->path);
  if (body == nullptr) {
    return refuse(connection, 404, "an unknown path", "there are /, /metrics and /status.json");
  }
  ++answered_[request->path];
  begin_answer(connection, 200, type_of(request->path), std::move(body), request->wants_body);
}

std::shared_ptr<const std::string> StatusServer::body_of(const std::string& path) {
  if (path != "/" && path != "/metrics" && path != "/status.json") return nullptr;
  Cached& cached = cache_[path];
  if (cached.body == nullptr || Clock::now() - cached.made > kFresh) {
    const RunStatus status = status_();
    std::string text = path == "/metrics"       ? status_metrics(status)
                       : path == "/status.json" ? status_json(status)
                                                : status_page(status);
    cached = {.body = std::make_shared<const std::string>(std::move(text)), .made = Clock::now()};
  }
  return cached.body;
}

void StatusServer::refuse(Connection& connection, int status, const std::string& cause,
                          const std::string& text) {
  ++refused_[cause];
  begin_answer(connection, status, kPlainText, std::make_shared<const std::string>(text + "\n"),
               /*wants_body=*/true);
}

void StatusServer::begin_answer(Connection& connection, int status, std::string_view type,
                                std::shared_ptr<const std::string> body, bool wants_body) {
  const std::string head = answer_head(status, type, body->size());
  connection.received = std::string();
  connection.body = std::move(body);
  connection.body_sent = wants_body ? 0 : connection.body->size();
  connection.state = Connection::State::kAnswering;
  connection.deadline = Clock::now() + options_.answer_time;
  if (connection.tls != nullptr) {
    connection.tls->send(head);
  } else {
    connection.unsent += head;
  }
}

// Sends a piece of what is left. Returns false if the connection is broken.
bool StatusServer::send_some(Connection& connection) {
  if (connection.tls != nullptr) connection.unsent += connection.tls->take_unsent();
  const bool is_answering = connection.state == Connection::State::kAnswering;
  if (connection.unsent.empty() && is_answering) {
    const std::string_view piece =
        std::string_view(*connection.body).substr(connection.body_sent, kPiece);
    connection.body_sent += piece.size();
    if (connection.tls != nullptr && !piece.empty()) {
      connection.tls->send(piece);
      connection.unsent = connection.tls->take_unsent();
    } else {
      connection.unsent = piece;
    }
  }
  if (!connection.unsent.empty()) {
    const ssize_t count = ::send(connection.socket.get(), connection.unsent.data(),
                                 connection.unsent.size(), MSG_NOSIGNAL);
    const bool is_full = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (count < 0 && !is_full) return false;
    if (count > 0) connection.unsent.erase(0, static_cast<std::size_t>(count));
  }
  const bool is_sent =
      connection.unsent.empty() && is_answering && connection.body_sent == connection.body->size();
  if (!is_sent) return true;
  // What the client has sent and nobody has read would take the end of the answer from it if the
  // connection was closed now.
  ::shutdown(connection.socket.get(), SHUT_WR);
  connection.state = Connection::State::kClosing;
  connection.bytes_of_client = 0;
  connection.deadline = Clock::now() + kToClose;
  return true;
}

}  // namespace trireme::launch
