// SPDX-License-Identifier: Apache-2.0
// Reads certificates and keys from files in the format PEM (RFC 7468), and describes certificates
// to people. Only the sources of this folder include it, because it shows OpenSSL's types.
#pragma once

#include <trireme/launch/tls/openssl_objects.h>
#include <trireme/launch/tls/tls_files.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::launch {

/// The length of a day.
inline constexpr std::int64_t kSecondsOfDay = std::int64_t{24} * 3600;

/// Returns a BIO that reads a text, which must outlive it.
BioPointer memory_of(const std::string& text);

/// Returns true if the text is an address of IPv4 or IPv6, and no name.
bool is_address(const std::string& host);

/// Reads the certificates in a file, the first one first. Throws ConfigError if the file cannot be
/// read or contains none.
/// @param what the meaning of the file, for errors.
std::vector<CertificatePointer> read_certificates(const std::filesystem::path& file,
                                                  const std::string& what);

/// Reads a private key. Throws ConfigError if the file cannot be read, other users can read it,
/// contains no key, or the key is encrypted by a passphrase.
KeyPointer read_key(const std::filesystem::path& file);

/// The certificate of this host, its key, and the authorities that it trusts.
struct Credentials {
  std::vector<CertificatePointer> certificates;  ///< its own, and those between it and an authority
  KeyPointer key;                                ///< the key of the first one
  std::vector<CertificatePointer> authorities;   ///< those that it trusts
};

/// Reads the files. Throws ConfigError if one cannot be read, the key is not that of the
/// certificate, or the certificate is not valid now or not by one of the authorities.
Credentials read_credentials(const TlsFiles& files);

/// Throws ConfigError if the key is not that of the first certificate.
void check_key(const Credentials& credentials, const TlsFiles& files);
/// Throws ConfigError if the certificate is not valid now, not by one of the authorities, or not
/// for servers and clients of TLS.
void check_certificate(const Credentials& credentials, const TlsFiles& files);

/// Returns a new store of certificates that are trusted.
StorePointer make_store(const std::vector<CertificatePointer>& trusted);

/// Returns the names and addresses of hosts that a certificate is for, such as `host1, 10.0.0.1`.
std::string hosts_of(const X509* certificate);
/// Returns the common name of the subject, or all of the subject if it has none.
std::string subject_of(const X509* certificate);
/// Returns the same of the issuer.
std::string issuer_of(const X509* certificate);
/// Returns the time from which a certificate is valid, in seconds since 1970.
std::int64_t begin_of(const X509* certificate);
/// Returns the time until which a certificate is valid, in seconds since 1970.
std::int64_t end_of(const X509* certificate);
/// Returns true if a certificate is for a host, given as a name or an address.
bool is_for(const X509* certificate, const std::string& host);

}  // namespace trireme::launch
