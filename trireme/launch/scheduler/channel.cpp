// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/channel.h>

#include <trireme/base/error.h>
#include <trireme/launch/hmac.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace trireme::launch {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kHeadBytes = kLengthBytes + std::tuple_size_v<MessageCode>;
// What a worker begins with if it does not encrypt, so that a scheduler that does can tell it.
constexpr std::string_view kOpening = "trireme\n";
// The first byte of what a side of TLS sends: the type of a record of the handshake, or an alert.
constexpr char kTlsHandshake = 22;
constexpr char kTlsAlert = 21;
// A peer that does not read gets no more than this.
constexpr std::size_t kMostUnsent = std::size_t{1} << 20;

std::string encode_length(std::size_t length) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes += static_cast<char>(length >> static_cast<unsigned>(shift) & 0xffU);
  return bytes;
}

std::size_t decode_length(std::string_view bytes) {
  std::size_t length = 0;
  for (const char byte : bytes.substr(0, kLengthBytes))
    length = length << 8U | static_cast<unsigned char>(byte);
  return length;
}

}  // namespace

Channel::Channel(UniqueFd socket, ChannelSide side, std::string secret, std::size_t longest,
                 std::unique_ptr<TlsSession> tls)
    : socket_(std::move(socket)),
      side_(side),
      secret_(std::move(secret)),
      longest_(longest),
      tls_(std::move(tls)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket_.get(), level, option, &value, sizeof(value));
  };
  // The kernels notice a host that is gone or cut off. A process that is only stopped stays
  // connected.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  if (tls_ == nullptr && side_ == ChannelSide::kWorker) unsent_ = kOpening;
  // A scheduler that does not encrypt begins with a frame.
  has_begun_ = tls_ == nullptr && side_ == ChannelSide::kWorker;
  flush();
}

void Channel::begin_session(std::string session) { session_ = std::move(session); }

std::string Channel::code_of(ChannelSide sender, std::uint64_t number,
                             std::string_view message) const {
  if (!has_codes()) return std::string(std::tuple_size_v<MessageCode>, '\0');
  // Session and number contain no line breaks, so that no two messages give the same text.
  std::string text = join_message(sender == ChannelSide::kScheduler ? "scheduler" : "worker", '\n',
                                  session_, '\n', number, '\n');
  text += message;
  return std::string(bytes_of(hmac_sha256(secret_, text)));
}

void Channel::send(std::string_view message) {
  if (!socket_) return;
  if (unsent_.size() + (tls_ == nullptr ? 0 : tls_->kept_bytes()) > kMostUnsent) return close();
  std::string frame = encode_length(message.size());
  frame += code_of(side_, sent_count_++, message);
  frame += message;
  if (tls_ != nullptr) {
    tls_->send(frame);
  } else {
    unsent_ += frame;
  }
  flush();
}

void Channel::flush() {
  if (tls_ != nullptr) unsent_ += tls_->take_unsent();
  std::size_t sent = 0;
  while (socket_ && sent < unsent_.size()) {
    const ssize_t count =
        ::send(socket_.get(), unsent_.data() + sent, unsent_.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    // What the other side sent before it closed the connection can still be received.
    if (count < 0) return unsent_.clear();
    sent += static_cast<std::size_t>(count);
  }
  unsent_.erase(0, sent);
}

std::optional<std::string> Channel::receive() {
  while (true) {
    if (auto message = next()) return message;
    if (!read_some()) return std::nullopt;
  }
}

bool Channel::read_some() {
  std::array<char, 1 << 14> buffer{};
  if (end_ != ChannelEnd::kNone || is_all_read_) return false;
  ssize_t count = 0;
  do {
    count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  is_all_read_ = count <= 0;
  if (count > 0) take({buffer.data(), static_cast<std::size_t>(count)});
  return true;
}

// Takes bytes that have come.
void Channel::take(std::string_view bytes) {
  if (!has_begun_ && !begins_as_expected(bytes)) return;
  if (tls_ == nullptr) {
    received_ += bytes;
    return take_beginning();
  }
  received_ += tls_->receive(bytes);
  is_all_read_ = is_all_read_ || tls_->is_closed();
  flush();
  if (tls_->failure()) end_ = ChannelEnd::kUntrusted;
}

// Looks at the first byte that has come, by which a side recognizes one that differs in encryption.
bool Channel::begins_as_expected(std::string_view bytes) {
  if (!received_.empty()) return true;
  const bool is_tls = bytes.front() == kTlsHandshake || bytes.front() == kTlsAlert;
  // The length of a scheduler's first frame, which is never long.
  const char beginning = side_ == ChannelSide::kScheduler ? kOpening.front() : '\0';
  if (is_tls && tls_ == nullptr) {
    end_ = ChannelEnd::kEncrypted;
  } else if (!is_tls && bytes.front() != beginning) {
    end_ = ChannelEnd::kOtherProtocol;
  } else if (!is_tls && tls_ != nullptr) {
    end_ = ChannelEnd::kNotEncrypted;
    tls_.reset();  // so that the other side can be told
  }
  has_begun_ = tls_ != nullptr;
  return end_ == ChannelEnd::kNone;
}

// Removes what a worker that does not encrypt begins with.
void Channel::take_beginning() {
  if (has_begun_) return;
  if (!kOpening.starts_with(std::string_view(received_).substr(0, kOpening.size()))) {
    end_ = ChannelEnd::kOtherProtocol;
  } else if (received_.size() >= kOpening.size()) {
    has_begun_ = true;
    received_.erase(0, kOpening.size());
  }
}

std::optional<std::string> Channel::next() {
  if (end_ != ChannelEnd::kNone) return std::nullopt;
  if (!has_begun_ && is_all_read_) end_ = ChannelEnd::kClosed;
  if (!has_begun_) return std::nullopt;
  const bool has_length = received_.size() >= kLengthBytes;
  const std::size_t length = has_length ? decode_length(received_) : 0;
  if (has_length && (length == 0 || length > longest_)) {
    end_ = ChannelEnd::kWrongLength;
    return std::nullopt;
  }
  if (!has_length || received_.size() < kHeadBytes + length) {
    if (is_all_read_) end_ = ChannelEnd::kClosed;
    return std::nullopt;
  }
  std::string message = received_.substr(kHeadBytes, length);
  if (has_codes()) {
    const ChannelSide sender =
        side_ == ChannelSide::kScheduler ? ChannelSide::kWorker : ChannelSide::kScheduler;
    const std::string expected = code_of(sender, received_count_, message);
    MessageCode code{};
    std::copy(expected.begin(), expected.end(), code.begin());
    if (!is_code(code, std::string_view(received_).substr(kLengthBytes, code.size()))) {
      end_ = ChannelEnd::kWrongCode;
      return std::nullopt;
    }
  }
  ++received_count_;
  received_.erase(0, kHeadBytes + length);
  return message;
}

void Channel::close() {
  socket_.reset();
  unsent_.clear();
  if (end_ == ChannelEnd::kNone) end_ = ChannelEnd::kClosed;
}

}  // namespace trireme::launch
