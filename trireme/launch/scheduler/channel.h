// SPDX-License-Identifier: Apache-2.0
// A connection between a scheduler and a worker that carries messages of limited length. It may be
// encrypted by TLS. With a secret, each message has a code that only a process with the secret can
// compute, for exactly this place of this connection (docs/formats/scheduler.md). It never blocks
// and does not interpret messages.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/tls/tls_session.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The largest number of bytes of a message.
inline constexpr std::size_t kLongestMessage = std::size_t{64} << 10;

/// The side of a connection that this process is on.
enum class ChannelSide {
  kScheduler,  ///< the scheduler's side
  kWorker,     ///< the worker's side
};

/// The reason why a channel cannot be used any more.
enum class ChannelEnd {
  kNone,           ///< it can be used
  kClosed,         ///< the other side has closed the connection, or it is broken
  kOtherProtocol,  ///< the other side began with what no scheduler or worker sends
  kEncrypted,      ///< the other side encrypts, and this side does not
  kNotEncrypted,   ///< this side encrypts, and the other side does not
  kUntrusted,      ///< encryption has failed (tls_failure())
  kWrongLength,    ///< the other side announced a message that is empty or too long
  kWrongCode,      ///< the other side does not have the secret
};

/// One end of a connection. Not thread-safe.
class Channel {
 public:
  /// Takes over a connected socket and makes it non-blocking.
  /// @param socket the socket.
  /// @param side the side that this process is on.
  /// @param secret the secret of the run; empty if there is none.
  /// @param longest the largest number of bytes of a message to receive.
  /// @param tls the encryption of the connection; null if it is not encrypted.
  Channel(UniqueFd socket, ChannelSide side, std::string secret,
          std::size_t longest = kLongestMessage, std::unique_ptr<TlsSession> tls = nullptr);

  /// Returns the socket to poll. It must be polled for writing while wants_to_write() is true.
  int fd() const { return socket_.get(); }
  /// Returns true if a part of a message waits to be sent.
  bool wants_to_write() const { return !unsent_.empty(); }
  /// Returns why the channel cannot be used any more.
  ChannelEnd end() const { return end_; }
  /// Returns why encryption has failed, if end() is kUntrusted.
  const TlsFailure& tls_failure() const { return tls_->failure().value(); }

  /// Names the session. Messages that are sent and received from now on have codes for it, if there
  /// is a secret. Before the first call, messages have no codes.
  void begin_session(std::string session);
  /// Changes the largest number of bytes of a message to receive.
  void set_longest(std::size_t longest) { longest_ = longest; }

  /// Sends a message as far as possible now, and keeps the rest for flush(). Drops the connection
  /// if too much has not been sent yet.
  void send(std::string_view message);
  /// Sends what could not be sent before.
  void flush();
  /// Returns the next message, or std::nullopt if it has not arrived yet or none can come (end()).
  std::optional<std::string> receive();
  /// Reads from the connection once, 16 KiB at most, and decrypts that. Returns false if there was
  /// nothing to read, or nothing can come. receive() does this itself; this and next() bound what
  /// one peer can cost.
  bool read_some();
  /// Returns the next message among what was read, or std::nullopt if it is not complete yet or
  /// none can come (end()).
  std::optional<std::string> next();
  /// Closes the connection.
  void close();

 private:
  bool has_codes() const { return !secret_.empty() && !session_.empty(); }
  std::string code_of(ChannelSide sender, std::uint64_t number, std::string_view message) const;
  void take(std::string_view bytes);
  bool begins_as_expected(std::string_view bytes);
  void take_beginning();

  UniqueFd socket_;
  ChannelSide side_;
  std::string secret_;
  std::size_t longest_;
  std::unique_ptr<TlsSession> tls_;
  std::string session_;
  std::string unsent_;
  std::string received_;
  bool has_begun_ = false;    // what the other side begins with has come
  bool is_all_read_ = false;  // the other side has closed the connection
  std::uint64_t sent_count_ = 0;
  std::uint64_t received_count_ = 0;
  ChannelEnd end_ = ChannelEnd::kNone;
};

}  // namespace trireme::launch
