// SPDX-License-Identifier: Apache-2.0
// Takes the place of the files that need OpenSSL in a build without it (TRIREME_OPENSSL=OFF).
#include <trireme/base/error.h>
#include <trireme/launch/tls/certificate_authority.h>
#include <trireme/launch/tls/certificate_check.h>
#include <trireme/launch/tls/tls_session.h>

namespace trireme::launch {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("this build has no OpenSSL, and encrypts nothing",
                    "build with TRIREME_OPENSSL=ON, or unset TRIREME_TLS and MS_ENABLE_SSL");
}

}  // namespace

struct TlsSession::Impl {};
struct TlsContext::Impl {};

std::string_view text_of(TlsCause /*cause*/) { return ""; }
std::string_view hint_of(TlsCause /*cause*/) { return ""; }

TlsSession::TlsSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsSession::~TlsSession() = default;
std::string TlsSession::receive(std::string_view /*bytes*/) { refuse(); }
void TlsSession::send(std::string_view /*bytes*/) { refuse(); }
std::string TlsSession::take_unsent() { refuse(); }
std::size_t TlsSession::kept_bytes() const { return 0; }
bool TlsSession::is_closed() const { return false; }
const std::optional<TlsFailure>& TlsSession::failure() const { refuse(); }

TlsContext::TlsContext(const TlsFiles& /*files*/) { refuse(); }
TlsContext::~TlsContext() = default;
std::unique_ptr<TlsSession> TlsContext::accept() const { refuse(); }
std::unique_ptr<TlsSession> TlsContext::connect(const std::string& /*host*/) const { refuse(); }
bool TlsContext::is_for(const std::string& /*host*/) const { refuse(); }
std::string TlsContext::hosts() const { refuse(); }

KeyAndCertificate make_authority(const Validity& /*validity*/) { refuse(); }
KeyAndCertificate make_certificate(const KeyAndCertificate& /*authority*/,
                                   const std::vector<std::string>& /*names*/,
                                   const Validity& /*validity*/) {
  refuse();
}
MadeCertificates make_certificates(const CertificateOrder& /*order*/) { refuse(); }
CertificateReport check_certificates(const TlsFiles& /*files*/,
                                     const std::vector<std::string>& /*hosts*/) {
  refuse();
}

}  // namespace trireme::launch
