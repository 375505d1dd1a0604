// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/tls/tls_session.h>

#include <trireme/base/text.h>
#include <trireme/launch/tls/certificate_files.h>

#include <openssl/sslerr.h>

#include <array>
#include <ctime>
#include <utility>

namespace trireme::launch {
namespace {

constexpr int kAlertTexts = SSL_AD_REASON_OFFSET;
constexpr int kAlertCertificateRequired = 116;

// Says what is wrong with a certificate of the other side.
TlsFailure failure_of(int problem, const X509* certificate, const std::string& dialled) {
  const std::string its = certificate == nullptr
                              ? "its certificate"
                              : join_message("its certificate '", subject_of(certificate), "' by '",
                                             issuer_of(certificate), "'");
  const std::string now = join_message(", it is ", utc_text(std::time(nullptr)), " here");
  switch (problem) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return {TlsCause::kExpired,
              join_message(its, " was valid until ", utc_text(end_of(certificate)), now)};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return {TlsCause::kNotYetValid,
              join_message(its, " is valid from ", utc_text(begin_of(certificate)), " on", now)};
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return {TlsCause::kOtherHost, join_message("its certificate is for ", hosts_of(certificate),
                                                 ", and not for ", dialled)};
    case X509_V_ERR_INVALID_PURPOSE:
      return {TlsCause::kBroken, join_message(its, " is not for servers and clients of TLS")};
    default:
      return {TlsCause::kOtherAuthority,
              join_message(its, " is not by an authority that is trusted here: ",
                           X509_verify_cert_error_string(problem))};
  }
}

// Says why the other side has ended the session, by the number of its alert (RFC 8446, section 6).
TlsFailure failure_of_alert(int alert) {
  switch (alert) {
    case kAlertCertificateRequired:
      return {TlsCause::kRefused, "it requires a certificate, and this side has shown none"};
    case SSL_AD_UNKNOWN_CA:
      return {TlsCause::kRefused,
              "it has refused the certificate of this side, because it does not trust the "
              "authority of the certificate"};
    case SSL_AD_CERTIFICATE_EXPIRED:
      return {TlsCause::kRefused,
              "it has refused the certificate of this side, which has expired by its clock"};
    case SSL_AD_BAD_CERTIFICATE:
      return {TlsCause::kRefused,
              "it has refused the certificate of this side, which is for other hosts than the one "
              "that was dialled, or not valid yet by its clock"};
    case SSL_AD_PROTOCOL_VERSION:
      return {TlsCause::kBroken, "it has another version of TLS than 1.3"};
    default:
      return {TlsCause::kRefused,
              join_message("it has ended the session with alert ", alert, " of TLS (",
                           SSL_alert_desc_string_long(alert), ")")};
  }
}

}  // namespace

std::string_view text_of(TlsCause cause) {
  switch (cause) {
    case TlsCause::kNoCertificate:
      return "no certificate";
    case TlsCause::kOtherAuthority:
      return "a certificate of another authority";
    case TlsCause::kExpired:
      return "an expired certificate";
    case TlsCause::kNotYetValid:
      return "a certificate that is not valid yet (check the clocks)";
    case TlsCause::kOtherHost:
      return "a certificate for another host";
    case TlsCause::kRefused:
      return "the certificate of this side was refused";
    case TlsCause::kBroken:
      return "broken TLS";
  }
  return "broken TLS";
}

std::string_view hint_of(TlsCause cause) {
  switch (cause) {
    case TlsCause::kNoCertificate:
      return "set TRIREME_TLS to the folder of this host's certificate";
    case TlsCause::kOtherAuthority:
      return "make the certificates of all hosts with one authority (trireme certificates make "
             "--ca-folder), and compare them by: trireme certificates check";
    case TlsCause::kExpired:
      return "make a new one: trireme certificates make --replace; and check the clocks of both "
             "hosts";
    case TlsCause::kNotYetValid:
      return "check the clocks of both hosts (timedatectl)";
    case TlsCause::kOtherHost:
      return "use a name or an address that the certificate is for, or make one for this name: "
             "trireme certificates make --replace";
    case TlsCause::kRefused:
      return "look at the output of the other side, and examine the files of both hosts by: "
             "trireme certificates check";
    case TlsCause::kBroken:
      return "check that the program at this port is Trireme, and that nothing between changes the "
             "connection";
  }
  return "";
}

struct TlsSession::Impl {
  SslPointer ssl;
  BIO* incoming = nullptr;  // both are owned by `ssl`
  BIO* outgoing = nullptr;
  std::string dialled{};
  std::string kept{};
  std::string received{};
  bool is_closed = false;
  std::optional<TlsFailure> failure{};

  void advance();
  void read_all();
  void fail();
  static int look_at_certificate(int is_good, X509_STORE_CTX* context);
};

// Called by OpenSSL for each certificate of the other side. Afterwards the certificate is gone, so
// what is wrong with it is described here.
int TlsSession::Impl::look_at_certificate(int is_good, X509_STORE_CTX* context) {
  if (is_good == 1) return 1;
  auto* const ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const session = static_cast<Impl*>(SSL_get_app_data(ssl));
  if (!session->failure) {
    session->failure = failure_of(X509_STORE_CTX_get_error(context),
                                  X509_STORE_CTX_get_current_cert(context), session->dialled);
  }
  return 0;
}

void TlsSession::Impl::fail() {
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  const std::string problem = take_openssl_error();
  if (failure) return;
  const bool is_of_tls = ERR_GET_LIB(code) == ERR_LIB_SSL;
  if (is_of_tls && reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    failure = {TlsCause::kNoCertificate, "it has shown no certificate"};
  } else if (is_of_tls && reason > kAlertTexts) {
    failure = failure_of_alert(reason - kAlertTexts);
  } else if (is_of_tls && reason == SSL_R_UNSUPPORTED_PROTOCOL) {
    failure = {TlsCause::kBroken, "it has another version of TLS than 1.3"};
  } else {
    failure = {TlsCause::kBroken, "it does not keep to TLS: " + problem};
  }
}

void TlsSession::Impl::advance() {
  if (failure || is_closed) return;
  ERR_clear_error();
  if (SSL_is_init_finished(ssl.get()) == 0) {
    const int result = SSL_do_handshake(ssl.get());
    if (result != 1) {
      if (SSL_get_error(ssl.get(), result) != SSL_ERROR_WANT_READ) fail();
      return;
    }
  }
  if (!kept.empty()) {
    const std::string all = std::exchange(kept, {});
    if (SSL_write(ssl.get(), all.data(), static_cast<int>(all.size())) <= 0) return fail();
  }
  read_all();
}

void TlsSession::Impl::read_all() {
  std::array<char, 1 << 14> buffer{};
  while (true) {
    const int count = SSL_read(ssl.get(), buffer.data(), static_cast<int>(buffer.size()));
    if (count > 0) {
      received.append(buffer.data(), static_cast<std::size_t>(count));
      continue;
    }
    switch (SSL_get_error(ssl.get(), count)) {
      case SSL_ERROR_WANT_READ:
        return;
      case SSL_ERROR_ZERO_RETURN:
        is_closed = true;
        return;
      default:
        return fail();
    }
  }
}

TlsSession::TlsSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  SSL_set_app_data(impl_->ssl.get(), impl_.get());
  impl_->advance();
}

TlsSession::~TlsSession() = default;

std::string TlsSession::receive(std::string_view bytes) {
  if (!impl_->failure && !bytes.empty()) {
    const int count = BIO_write(impl_->incoming, bytes.data(), static_cast<int>(bytes.size()));
    check_openssl(count == static_cast<int>(bytes.size()), "BIO_write");
    impl_->advance();
  }
  return std::exchange(impl_->received, {});
}

void TlsSession::send(std::string_view bytes) {
  impl_->kept += bytes;
  if (SSL_is_init_finished(impl_->ssl.get()) == 1) impl_->advance();
}

std::string TlsSession::take_unsent() {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(impl_->outgoing, &data);
  std::string bytes(data, static_cast<std::size_t>(std::max(size, 0L)));
  BIO_reset(impl_->outgoing);
  return bytes;
}

std::size_t TlsSession::kept_bytes() const { return impl_->kept.size(); }

bool TlsSession::is_closed() const { return impl_->is_closed; }

const std::optional<TlsFailure>& TlsSession::failure() const { return impl_->failure; }

struct TlsContext::Impl {
  SslContextPointer context;
  CertificatePointer certificate;

  std::unique_ptr<TlsSession::Impl> start() const;
};

std::unique_ptr<TlsSession::Impl> TlsContext::Impl::start() const {
  auto session = std::make_unique<TlsSession::Impl>();
  session->ssl.reset(SSL_new(context.get()));
  check_openssl(session->ssl != nullptr, "SSL_new");
  session->incoming = BIO_new(BIO_s_mem());
  session->outgoing = BIO_new(BIO_s_mem());
  check_openssl(session->incoming != nullptr && session->outgoing != nullptr, "BIO_new");
  // An empty buffer means that more may come, and not the end.
  BIO_set_mem_eof_return(session->incoming, -1);
  BIO_set_mem_eof_return(session->outgoing, -1);
  SSL_set_bio(session->ssl.get(), session->incoming, session->outgoing);
  return session;
}

TlsContext::TlsContext(const TlsFiles& files) : impl_(std::make_unique<Impl>()) {
  constexpr long kLargestCertificates = 64L << 10;
  constexpr int kDeepestChain = 4;
  Credentials credentials = read_credentials(files);
  impl_->context.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* const context = impl_->context.get();
  check_openssl(context != nullptr, "SSL_CTX_new");
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_max_cert_list(context, kLargestCertificates);
  // Only the certificates in the file are shown, and not that of the authority.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
  // Each connection is a session of its own, and lasts for the whole run.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     &TlsSession::Impl::look_at_certificate);
  SSL_CTX_set_verify_depth(context, kDeepestChain);
  SSL_CTX_set_cert_store(context, make_store(credentials.authorities).release());
  const std::string file = files.certificate.string();
  for (std::size_t i = 0; i < credentials.certificates.size(); ++i) {
    X509* const certificate = credentials.certificates[i].get();
    const bool is_taken = i == 0 ? SSL_CTX_use_certificate(context, certificate) == 1
                                 : SSL_CTX_add1_chain_cert(context, certificate) == 1;
    if (is_taken) continue;
    throw ConfigError(
        join_message("the certificate ", file, " cannot be used: ", take_openssl_error()),
        "make one by: trireme certificates make");
  }
  check_openssl(SSL_CTX_use_PrivateKey(context, credentials.key.get()) == 1,
                "SSL_CTX_use_PrivateKey");
  impl_->certificate = std::move(credentials.certificates.front());
}

TlsContext::~TlsContext() = default;

std::unique_ptr<TlsSession> TlsContext::accept() const {
  auto session = impl_->start();
  SSL_set_accept_state(session->ssl.get());
  return std::unique_ptr<TlsSession>(new TlsSession(std::move(session)));
}

std::unique_ptr<TlsSession> TlsContext::connect(const std::string& host) const {
  auto session = impl_->start();
  session->dialled = host;
  SSL* const ssl = session->ssl.get();
  SSL_set_connect_state(ssl);
  // An address of one link has the name of an interface, which no certificate has: fe80::1%eth0.
  const std::string name = host.substr(0, host.find('%'));
  X509_VERIFY_PARAM* const expected = SSL_get0_param(ssl);
  if (is_address(name)) {
    check_openssl(X509_VERIFY_PARAM_set1_ip_asc(expected, name.c_str()) == 1,
                  "X509_VERIFY_PARAM_set1_ip_asc");
  } else {
    X509_VERIFY_PARAM_set_hostflags(
        expected, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    check_openssl(X509_VERIFY_PARAM_set1_host(expected, name.c_str(), name.size()) == 1,
                  "X509_VERIFY_PARAM_set1_host");
    check_openssl(SSL_set_tlsext_host_name(ssl, name.c_str()) == 1, "SSL_set_tlsext_host_name");
  }
  return std::unique_ptr<TlsSession>(new TlsSession(std::move(session)));
}

bool TlsContext::is_for(const std::string& host) const {
  return launch::is_for(impl_->certificate.get(), host);
}

std::string TlsContext::hosts() const { return hosts_of(impl_->certificate.get()); }

}  // namespace trireme::launch
