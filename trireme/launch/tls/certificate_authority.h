// SPDX-License-Identifier: Apache-2.0
// Makes a certificate authority, and certificates of hosts by it (X.509 version 3, RFC 5280), with
// elliptic keys on the curve P-256.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::launch {

/// A time in which a certificate is valid, in seconds since 1970.
struct Validity {
  std::int64_t begin = 0;  ///< the first second
  std::int64_t end = 0;    ///< the last second
};

/// A certificate and its key, in the format PEM.
struct KeyAndCertificate {
  std::string key;          ///< the private key
  std::string certificate;  ///< the certificate
};

/// Makes a new authority, with a random number in its name.
KeyAndCertificate make_authority(const Validity& validity);

/// Makes a certificate of a host by an authority, for servers and clients of TLS.
/// @param authority the authority.
/// @param names the names and addresses under which the host is reached.
/// @param validity the time in which the certificate is valid.
KeyAndCertificate make_certificate(const KeyAndCertificate& authority,
                                   const std::vector<std::string>& names, const Validity& validity);

/// What `trireme certificates make` is to make.
struct CertificateOrder {
  std::filesystem::path authority_folder;  ///< where the authority is, or will be
  std::filesystem::path folder;            ///< where each host gets a folder
  std::vector<std::string> hosts;          ///< names and addresses: `host1` or `host1,10.0.0.1`
  int days = 365;                          ///< the time for which certificates are valid
  int authority_days = 3650;               ///< the same for a new authority
  bool replaces = false;                   ///< true: takes the place of files that exist
};

/// The files that were made.
struct MadeCertificates {
  bool has_made_authority = false;             ///< false: an existing one was used
  std::filesystem::path authority;             ///< the certificate of the authority
  std::vector<std::filesystem::path> folders;  ///< the folders of the hosts, for TRIREME_TLS
};

/// Makes the certificate and the key of each host, and before that the authority if its folder has
/// none. Keys can be read by their owner only. Nothing is made if a name is wrong or a file exists
/// that may not be replaced.
///
/// Throws ConfigError if that is so, a file cannot be written, or the authority cannot be used or
/// ends before the certificates.
MadeCertificates make_certificates(const CertificateOrder& order);

}  // namespace trireme::launch
