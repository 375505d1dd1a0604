// SPDX-License-Identifier: Apache-2.0
// One side of TLS by OpenSSL itself, over a blocking socket: it shows whatever certificate it is
// given, and trusts everybody. So it does what no scheduler or worker would do.
#pragma once

#include <trireme/launch/tls/openssl_objects.h>
#include <trireme/launch/tls/tls_files.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>

namespace trireme::test {

using launch::SslContextPointer;
using launch::SslPointer;
using launch::TlsFiles;

class RawTls {
 public:
  enum class Side { kClient, kServer };

  /// Prepares a side. Without files it shows no certificate.
  RawTls(Side side, const std::optional<TlsFiles>& files) : context_(SSL_CTX_new(TLS_method())) {
    if (files) {
      const bool is_taken =
          SSL_CTX_use_certificate_file(context_.get(), files->certificate.c_str(),
                                       SSL_FILETYPE_PEM) == 1 &&
          SSL_CTX_use_PrivateKey_file(context_.get(), files->key.c_str(), SSL_FILETYPE_PEM) == 1;
      if (!is_taken) throw std::runtime_error("no certificate: " + launch::take_openssl_error());
    }
    ssl_.reset(SSL_new(context_.get()));
    side == Side::kClient ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
  }

  /// Limits the versions of the protocol, such as TLS1_2_VERSION.
  void set_newest(int version) { SSL_set_max_proto_version(ssl_.get(), version); }

  /// Reads over a connected socket until the other side says something, closes, or ends the
  /// session. Returns what it has said, or why it has ended.
  std::string talk(int fd) {
    SSL_set_fd(ssl_.get(), fd);
    ERR_clear_error();
    std::array<char, 4096> buffer{};
    const int count = SSL_read(ssl_.get(), buffer.data(), static_cast<int>(buffer.size()));
    if (count > 0) return {buffer.data(), static_cast<std::size_t>(count)};
    return "ended: " + launch::take_openssl_error();
  }

 private:
  SslContextPointer context_;
  SslPointer ssl_;
};

}  // namespace trireme::test
