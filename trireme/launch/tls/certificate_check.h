// SPDX-License-Identifier: Apache-2.0
// Examines the files of a host for TLS: whether they fit together, for which hosts they are, and
// how long they last.
#pragma once

#include <trireme/launch/tls/tls_files.h>

#include <string>
#include <vector>

namespace trireme::launch {

/// The result of an examination.
struct CertificateReport {
  std::string text;                   ///< what the files are, in several lines
  std::vector<std::string> problems;  ///< why they cannot be used; empty if they can
  std::vector<std::string> warnings;  ///< what will soon be wrong
};

/// Examines the files. Reports all problems, and throws nothing about them.
/// @param files the files.
/// @param hosts names and addresses for which the certificate must be.
CertificateReport check_certificates(const TlsFiles& files, const std::vector<std::string>& hosts);

}  // namespace trireme::launch
