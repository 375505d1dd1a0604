// SPDX-License-Identifier: Apache-2.0
// Which files a scheduler or worker uses for TLS, as variables or options say: its certificate, its
// key, and the certificate of the authority that it trusts. Opens no file.
#pragma once

#include <trireme/base/environment.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The names of the files in a folder that TRIREME_TLS or --tls names.
inline constexpr std::string_view kCertificateFile = "certificate.pem";
inline constexpr std::string_view kKeyFile = "key.pem";
inline constexpr std::string_view kAuthorityFile = "ca.pem";

/// The files of one host, in the format PEM.
struct TlsFiles {
  std::filesystem::path certificate;  ///< its certificate, and those between it and the authority
  std::filesystem::path key;          ///< the private key of the certificate
  std::filesystem::path authority;    ///< the certificates of the authorities that it trusts
  bool operator==(const TlsFiles&) const = default;
};

/// Returns the files in a folder.
TlsFiles tls_files_of(const std::filesystem::path& folder);

/// Values of the options --tls, --tls-certificate, --tls-key and --tls-ca. Empty if not given.
struct TlsOptions {
  std::string folder{};       ///< --tls
  std::string certificate{};  ///< --tls-certificate
  std::string key{};          ///< --tls-key
  std::string authority{};    ///< --tls-ca
};

/// Returns the files that the options name, or if there are none, those that TRIREME_TLS,
/// TRIREME_TLS_CERTIFICATE, TRIREME_TLS_KEY and TRIREME_TLS_CA name. A single file takes the place
/// of that in the folder. Returns std::nullopt if nothing names a file: connections are then not
/// encrypted.
///
/// Throws ConfigError if one of the files is missing among the names, MS_ENABLE_SSL is on without
/// them, or off although variables name them.
std::optional<TlsFiles> read_tls_files(const Environment& environment,
                                       const TlsOptions& options = {});

/// Returns true if a variable of MindSpore's kind of switches is on: it is neither empty nor 0 nor
/// false.
bool is_switched_on(const std::optional<std::string>& value);

}  // namespace trireme::launch
