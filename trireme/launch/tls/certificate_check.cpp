// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/tls/certificate_check.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/tls/certificate_files.h>

#include <ctime>
#include <functional>

namespace trireme::launch {
namespace {

constexpr std::int64_t kShortDays = 30;

std::int64_t days_left(const X509* certificate) {
  return (end_of(certificate) - std::time(nullptr)) / kSecondsOfDay;
}

std::string times_of(const X509* certificate) {
  const std::int64_t left = days_left(certificate);
  return join_message("from ", utc_text(begin_of(certificate)), "\n  until      ",
                      utc_text(end_of(certificate)), ", ", left, left == 1 ? " day" : " days",
                      " left");
}

}  // namespace

CertificateReport check_certificates(const TlsFiles& files, const std::vector<std::string>& hosts) {
  CertificateReport report;
  Credentials found;
  const auto attempt = [&](const std::function<void()>& action) {
    try {
      action();
    } catch (const ConfigError& problem) {
      report.problems.emplace_back(problem.what());
    }
  };
  attempt([&] { found.certificates = read_certificates(files.certificate, "the certificate"); });
  attempt([&] { found.key = read_key(files.key); });
  attempt([&] { found.authorities = read_certificates(files.authority, "the authority"); });
  if (!found.certificates.empty()) {
    const X509* const own = found.certificates.front().get();
    report.text +=
        join_message("certificate  ", files.certificate.string(), "\n  for        ", hosts_of(own),
                     "\n  by         ", issuer_of(own), "\n  valid      ", times_of(own), "\n");
    if (const std::int64_t left = days_left(own); left >= 0 && left < kShortDays) {
      report.warnings.push_back(join_message("the certificate ", files.certificate.string(),
                                             " lasts only ", left, " more days"));
    }
    for (const std::string& host : hosts) {
      if (is_for(own, host)) continue;
      report.problems.push_back(join_message(
          "the certificate ", files.certificate.string(), " is for ", hosts_of(own),
          ", and not for ", host,
          ". hint: make one for all names of the host: trireme certificates make --replace"));
    }
  }
  report.text += join_message("key          ", files.key.string(), "\n");
  for (const CertificatePointer& authority : found.authorities) {
    report.text += join_message("authority    ", files.authority.string(), "\n  name       ",
                                subject_of(authority.get()), "\n  valid      ",
                                times_of(authority.get()), "\n");
  }
  if (!found.certificates.empty() && found.key != nullptr)
    attempt([&] { check_key(found, files); });
  if (!found.certificates.empty() && !found.authorities.empty())
    attempt([&] { check_certificate(found, files); });
  return report;
}

}  // namespace trireme::launch
