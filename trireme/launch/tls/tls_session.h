// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 (RFC 8446) with certificates on both sides, for a connection whose socket belongs to
// somebody else: it is given the bytes that came, and gives those to send. So it never blocks, and
// the owner of the socket bounds how much work one peer causes.
#pragma once

#include <trireme/launch/tls/tls_files.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// Why a session has failed.
enum class TlsCause {
  kNoCertificate,   ///< the other side has shown no certificate
  kOtherAuthority,  ///< its certificate is not by an authority that this side trusts
  kExpired,         ///< its certificate, or its authority, has expired
  kNotYetValid,     ///< its certificate is not valid yet, or a clock is wrong
  kOtherHost,       ///< its certificate is for other hosts than the one that was dialled
  kRefused,         ///< it has refused the certificate of this side, or the session
  kBroken,          ///< it does not keep to TLS 1.3
};

/// Returns a cause in a few words, to count connections.
std::string_view text_of(TlsCause cause);
/// Returns what to do about a cause.
std::string_view hint_of(TlsCause cause);

/// Why a session has failed.
struct TlsFailure {
  TlsCause cause = TlsCause::kBroken;  ///< the kind
  std::string text;                    ///< what `it`, the other side, has done
};

/// One side of an encrypted connection. Not thread-safe.
class TlsSession {
 public:
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession();

  /// Takes bytes that have come from the other side, and returns those of the messages in them.
  /// Nothing is returned before both sides have proved who they are.
  std::string receive(std::string_view bytes);
  /// Encrypts what is to be sent. Before both sides have proved who they are it is kept.
  void send(std::string_view bytes);
  /// Returns the bytes to be sent to the other side, and forgets them.
  std::string take_unsent();
  /// Returns the number of bytes that are kept until both sides have proved who they are.
  std::size_t kept_bytes() const;

  /// Returns true if the other side has said that it sends nothing more.
  bool is_closed() const;
  /// Returns why the session cannot be used any more, or std::nullopt if it can. What
  /// take_unsent() returns then tells the other side.
  const std::optional<TlsFailure>& failure() const;

 private:
  friend class TlsContext;
  struct Impl;
  explicit TlsSession(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

/// The certificate of this host and the authorities that it trusts. Const methods may be called
/// concurrently.
class TlsContext {
 public:
  /// Reads the files. Throws ConfigError if one cannot be read, others can read the key, they do
  /// not fit together, or the certificate is not valid now.
  explicit TlsContext(const TlsFiles& files);
  ~TlsContext();

  /// Returns a new session for a connection that was accepted. The other side must show a
  /// certificate by an authority of this side.
  std::unique_ptr<TlsSession> accept() const;
  /// Returns a new session for a connection that was made to a host. The other side must show a
  /// certificate by an authority of this side that is for this host.
  /// @param host the name or the address that was dialled.
  std::unique_ptr<TlsSession> connect(const std::string& host) const;

  /// Returns true if the certificate of this side is for a host, given as a name or an address.
  bool is_for(const std::string& host) const;
  /// Returns the hosts that the certificate of this side is for.
  std::string hosts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::launch
