// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/status_client.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/connect.h>
#include <trireme/launch/tls/tls_session.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

namespace trireme::launch {
namespace {

using ClientClock = std::chrono::steady_clock;

// A run of the largest world has about this many bytes.
constexpr std::size_t kLongestAnswer = std::size_t{1} << 30;
constexpr std::chrono::milliseconds kBetweenTries{200};

// One connection, whose calls end at a deadline.
class Client {
 public:
  Client(StatusAddress address, ClientClock::time_point deadline)
      : address_(std::move(address)), deadline_(deadline) {}

  void connect(const std::optional<TlsFiles>& tls) {
    std::string problem;
    while (!(socket_ = try_connect(address_.place, deadline_, problem))) {
      const bool is_over = ClientClock::now() + kBetweenTries > deadline_;
      if (is_over) {
        throw CommError(
            join_message("nobody serves a status at ", text_of(address_.place), ": ", problem),
            "is the run still there, was it started with --status, and is this its host?");
      }
      wait_for(-1, 0, ClientClock::now() + kBetweenTries);
    }
    ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
    if (!address_.is_encrypted) return;
    context_.emplace(*tls);
    session_ = context_->connect(address_.place.host);
  }

  void send(std::string bytes) {
    if (session_ != nullptr) {
      session_->send(bytes);
      bytes = session_->take_unsent();
    }
    unsent_ += bytes;
  }

  // Returns all bytes until the other side closes the connection.
  std::string receive_all() {
    std::string all;
    std::array<char, 1 << 14> buffer{};
    while (all.size() <= kLongestAnswer) {
      flush();
      const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (count == 0) return all;
      if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        fail("the connection is broken: " + describe_errno(errno));
      if (count < 0) {
        if (!wait_for(socket_.get(), POLLIN, deadline_)) fail("it does not answer in time");
        continue;
      }
      const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
      if (session_ == nullptr) {
        all += bytes;
        continue;
      }
      all += session_->receive(bytes);
      if (const auto& failure = session_->failure()) {
        throw ConfigError(join_message("the encryption (TLS) with ", text_of(address_.place),
                                       " has failed: ", failure->text),
                          hint_of(failure->cause));
      }
    }
    fail("its answer is too long");
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw CommError(join_message("no status came from ", text_of(address_.place), ": ", why),
                    "give the address of the status of a run; https:// if it is encrypted");
  }

 private:
  void flush() {
    if (session_ != nullptr) unsent_ += session_->take_unsent();
    while (!unsent_.empty()) {
      const ssize_t count = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (count > 0) {
        unsent_.erase(0, static_cast<std::size_t>(count));
      } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        return unsent_.clear();  // what came before tells why
      } else if (!wait_for(socket_.get(), POLLOUT, deadline_)) {
        fail("it takes nothing");
      }
    }
  }

  StatusAddress address_;
  ClientClock::time_point deadline_;
  UniqueFd socket_;
  std::optional<TlsContext> context_;
  std::unique_ptr<TlsSession> session_;
  std::string unsent_;
};

}  // namespace

std::string fetch_status(const StatusAddress& address, const std::string& path,
                         const std::optional<TlsFiles>& tls, std::chrono::milliseconds timeout) {
  if (address.is_encrypted && !tls) {
    throw ConfigError(join_message("the status at ", text_of(address.place),
                                   " is encrypted, and this side has no certificate"),
                      "give --tls FOLDER, or set TRIREME_TLS");
  }
  Client client(address, ClientClock::now() + timeout);
  client.connect(tls);
  std::string request = join_message("GET ", path, " HTTP/1.1\r\nHost: ", text_of(address.place),
                                     "\r\nConnection: close\r\n");
  if (!address.token.empty()) request += "Authorization: Bearer " + address.token + "\r\n";
  client.send(request + "\r\n");
  const std::string answer = client.receive_all();
  constexpr std::string_view kBegin = "HTTP/1.1 ";
  constexpr std::string_view kEnd = "\r\n\r\n";
  constexpr std::size_t kDigits = 3;
  const std::size_t head = answer.find(kEnd);
  const auto status =
      answer.starts_with(kBegin)
          ? parse_number<int>(std::string_view(answer).substr(kBegin.size(), kDigits))
          : std::nullopt;
  if (!status || head == std::string::npos) {
    client.fail(answer.empty() ? "it closed the connection without an answer"
                               : "it does not speak HTTP");
  }
  std::string body = answer.substr(head + kEnd.size());
  if (*status == 200) return body;
  constexpr std::size_t kLongestReason = 300;
  const std::string reason =
      printable(std::string_view(body).substr(0, std::min(body.find('\n'), kLongestReason)));
  if (*status == 401) {
    throw ConfigError(join_message("the status at ", text_of(address.place), " refuses: ", reason),
                      "give the folder of the run, or --token-file");
  }
  client.fail(join_message("it answers ", *status, ": ", reason));
}

}  // namespace trireme::launch
