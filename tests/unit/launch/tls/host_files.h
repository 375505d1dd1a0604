// SPDX-License-Identifier: Apache-2.0
// Files for TLS that a test can make as it likes: by another authority, expired, or for others.
#pragma once

#include <trireme/launch/tls/certificate_authority.h>
#include <trireme/launch/tls/tls_files.h>

#include <tests/temporary_folder.h>

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::test {

using launch::KeyAndCertificate;
using launch::TlsFiles;
using launch::Validity;

inline constexpr std::int64_t kHour = 3600;
inline constexpr std::int64_t kDay = 24 * kHour;

/// Returns a time around now, in seconds.
inline Validity around_now(std::int64_t before = kHour, std::int64_t after = kHour) {
  const std::int64_t now = std::time(nullptr);
  return {.begin = now - before, .end = now + after};
}

/// An authority, and files of hosts in a temporary folder.
class HostFiles {
 public:
  /// Writes the files of a host.
  /// @param folder the name of the folder.
  /// @param names the names and addresses of the host.
  /// @param validity the time in which the certificate is valid.
  TlsFiles make(const std::string& folder, const std::vector<std::string>& names = {"127.0.0.1"},
                const Validity& validity = around_now()) const {
    return write(folder, launch::make_certificate(authority_, names, validity));
  }

  /// Writes given files of a host.
  TlsFiles write(const std::string& folder, const KeyAndCertificate& files) const {
    const TlsFiles paths = launch::tls_files_of(folder_ / folder);
    folder_.write(folder + "/certificate.pem", files.certificate);
    folder_.write(folder + "/key.pem", files.key);
    folder_.write(folder + "/ca.pem", authority_.certificate);
    std::filesystem::permissions(
        paths.key, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return paths;
  }

  /// Returns the authority.
  const KeyAndCertificate& authority() const { return authority_; }
  /// Returns the folder of all files.
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
  KeyAndCertificate authority_ = launch::make_authority(around_now(kDay, 4 * kDay));
};

}  // namespace trireme::test
