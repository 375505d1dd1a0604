// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/tls/certificate_files.h>

#include <trireme/base/text.h>
#include <trireme/base/unique_fd.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <ctime>

namespace trireme::launch {
namespace {

constexpr const char* kMakeHint =
    "make files that fit together by: trireme certificates make; and copy the folder of a host to "
    "that host";

std::string octal(mode_t mode) {
  constexpr unsigned kDigitMask = 7;
  std::string text;
  for (const unsigned shift : {6U, 3U, 0U})
    text += static_cast<char>('0' + (mode >> shift & kDigitMask));
  return "0" + text;
}

enum class Readers { kAnyone, kOwner };

// Returns the content of a file. The permissions are those of the file that is read, whatever
// happens to its name meanwhile.
std::string read_file(const std::filesystem::path& file, const std::string& what, Readers readers) {
  constexpr std::size_t kLargest = std::size_t{1} << 20;
  const UniqueFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  if (!opened || ::fstat(opened.get(), &status) != 0) {
    const int failure = errno;
    throw ConfigError(
        join_message("cannot read ", what, " ", file.string(), ": ", describe_errno(failure)),
        failure == EACCES ? "it must belong to the user who runs this" : kMakeHint);
  }
  if (!S_ISREG(status.st_mode)) {
    throw ConfigError(join_message(what, " ", file.string(), " is no regular file"),
                      "name a file in the format PEM");
  }
  if (readers == Readers::kOwner && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw ConfigError(join_message(what, " ", file.string(), " has mode ", octal(status.st_mode),
                                   ": other users can read or write it, expected 0600"),
                      join_message("if nobody has copied it: chmod 600 ",
                                   shell_quoted(file.string()), "; otherwise make a new one"));
  }
  std::string text;
  std::array<char, 1 << 14> buffer{};
  while (text.size() <= kLargest) {
    const ssize_t count = ::read(opened.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) return text;
    if (count < 0) {
      throw ConfigError(
          join_message("cannot read ", what, " ", file.string(), ": ", describe_errno(errno)),
          kMakeHint);
    }
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  throw ConfigError(join_message(what, " ", file.string(), " has more than ", kLargest, " bytes"),
                    "name a file in the format PEM");
}

// OpenSSL would otherwise ask for a passphrase at the terminal.
int have_no_passphrase(char* /*buffer*/, int /*size*/, int /*writes*/, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return 0;
}

std::string name_of(const X509_NAME* name) {
  const int index = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
  if (index >= 0) {
    const ASN1_STRING* const text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, index));
    unsigned char* utf8 = nullptr;
    const int length = ASN1_STRING_to_UTF8(&utf8, text);
    if (length > 0) {
      std::string found(reinterpret_cast<const char*>(utf8), static_cast<std::size_t>(length));
      OPENSSL_free(utf8);
      return printable(found);
    }
    ERR_clear_error();
  }
  std::array<char, 256> line{};
  X509_NAME_oneline(name, line.data(), static_cast<int>(line.size()));
  return printable(line.data());
}

std::int64_t seconds_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) {
    ERR_clear_error();
    return 0;
  }
  return ::timegm(&parts);
}

std::string address_text(const ASN1_OCTET_STRING* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = ASN1_STRING_length(address) == sizeof(in_addr) ? AF_INET : AF_INET6;
  const bool is_known = family == AF_INET || ASN1_STRING_length(address) == sizeof(in6_addr);
  if (!is_known ||
      ::inet_ntop(family, ASN1_STRING_get0_data(address), text.data(), text.size()) == nullptr) {
    return "an unknown address";
  }
  return text.data();
}

std::string alternative_name(const GENERAL_NAME* name) {
  int kind = 0;
  const void* const value = GENERAL_NAME_get0_value(name, &kind);
  if (kind == GEN_IPADD) return address_text(static_cast<const ASN1_OCTET_STRING*>(value));
  if (kind != GEN_DNS) return {};
  const auto* const text = static_cast<const ASN1_STRING*>(value);
  return printable({reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                    static_cast<std::size_t>(ASN1_STRING_length(text))});
}

// Throws ConfigError unless a certificate is for both sides of a connection.
void check_purpose(X509* certificate, const TlsFiles& files) {
  if (X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0) == 1 &&
      X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, 0) == 1) {
    return;
  }
  throw ConfigError(join_message("the certificate ", files.certificate.string(),
                                 " is not for servers and clients of TLS by its key usage"),
                    kMakeHint);
}

}  // namespace

BioPointer memory_of(const std::string& text) {
  BioPointer bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  check_openssl(bio != nullptr, "BIO_new_mem_buf");
  return bio;
}

bool is_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

std::vector<CertificatePointer> read_certificates(const std::filesystem::path& file,
                                                  const std::string& what) {
  constexpr std::size_t kMost = 100;
  const std::string text = read_file(file, what, Readers::kAnyone);
  const BioPointer bio = memory_of(text);
  std::vector<CertificatePointer> all;
  while (all.size() < kMost) {
    CertificatePointer next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    all.push_back(std::move(next));
  }
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string problem = take_openssl_error();
  if (!all.empty() && is_end) return all;
  throw ConfigError(
      join_message(what, " ", file.string(), " ",
                   is_end ? "contains no certificate in the format PEM" : "is damaged: " + problem),
      kMakeHint);
}

KeyPointer read_key(const std::filesystem::path& file) {
  const std::string text = read_file(file, "the key", Readers::kOwner);
  const BioPointer bio = memory_of(text);
  bool was_asked = false;
  KeyPointer key(PEM_read_bio_PrivateKey(bio.get(), nullptr, have_no_passphrase, &was_asked));
  if (key != nullptr) return key;
  const std::string problem = take_openssl_error();
  if (was_asked) {
    throw ConfigError(
        join_message("the key ", file.string(),
                     " is encrypted by a passphrase, expected one without"),
        join_message("nobody could enter it on each host: openssl pkey -in ",
                     shell_quoted(file.string()), " -out key.pem; chmod 600 key.pem"));
  }
  throw ConfigError(join_message("the key ", file.string(),
                                 " contains no private key in the format PEM: ", problem),
                    kMakeHint);
}

StorePointer make_store(const std::vector<CertificatePointer>& trusted) {
  StorePointer store(X509_STORE_new());
  check_openssl(store != nullptr, "X509_STORE_new");
  for (const CertificatePointer& one : trusted)
    check_openssl(X509_STORE_add_cert(store.get(), one.get()) == 1, "X509_STORE_add_cert");
  return store;
}

void check_key(const Credentials& credentials, const TlsFiles& files) {
  if (X509_check_private_key(credentials.certificates.front().get(), credentials.key.get()) == 1)
    return;
  ERR_clear_error();
  throw ConfigError(join_message("the key ", files.key.string(), " is not that of the certificate ",
                                 files.certificate.string()),
                    kMakeHint);
}

void check_certificate(const Credentials& credentials, const TlsFiles& files) {
  X509* const own = credentials.certificates.front().get();
  const StorePointer store = make_store(credentials.authorities);
  const StoreContextPointer context(X509_STORE_CTX_new());
  // The certificates between the own one and the authority; the list does not own them.
  const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> between(
      sk_X509_new_null(), [](STACK_OF(X509) * list) { sk_X509_free(list); });
  for (const CertificatePointer& one : credentials.certificates)
    sk_X509_push(between.get(), one.get());
  check_openssl(X509_STORE_CTX_init(context.get(), store.get(), own, between.get()) == 1,
                "X509_STORE_CTX_init");
  if (X509_verify_cert(context.get()) == 1) return check_purpose(own, files);
  const int problem = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  const std::string file = join_message("the certificate ", files.certificate.string());
  const X509* const at_fault = X509_STORE_CTX_get_current_cert(context.get());
  const X509* const concerned = at_fault == nullptr ? own : at_fault;
  const std::string now = utc_text(std::time(nullptr));
  if (problem == X509_V_ERR_CERT_HAS_EXPIRED) {
    throw ConfigError(
        join_message(file, " has expired: ", subject_of(concerned), " was valid until ",
                     utc_text(end_of(concerned)), ", it is ", now),
        "make a new one: trireme certificates make --replace");
  }
  if (problem == X509_V_ERR_CERT_NOT_YET_VALID) {
    throw ConfigError(
        join_message(file, " is not valid yet: ", subject_of(concerned), " is valid from ",
                     utc_text(begin_of(concerned)), " on, it is ", now),
        "check the clock of this host (timedatectl)");
  }
  throw ConfigError(
      join_message(file, " is by '", issuer_of(own), "', which ", files.authority.string(),
                   " does not confirm: ", X509_verify_cert_error_string(problem)),
      kMakeHint);
}

Credentials read_credentials(const TlsFiles& files) {
  Credentials credentials{.certificates = read_certificates(files.certificate, "the certificate"),
                          .key = read_key(files.key),
                          .authorities = read_certificates(files.authority, "the authority")};
  check_key(credentials, files);
  check_certificate(credentials, files);
  return credentials;
}

std::string hosts_of(const X509* certificate) {
  constexpr int kMost = 32;
  const NamesPointer names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string text;
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  for (int i = 0; i < count; ++i) {
    if (i == kMost) return text + join_message(" and ", count - kMost, " more");
    const std::string name = alternative_name(sk_GENERAL_NAME_value(names.get(), i));
    if (!name.empty()) text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "no host" : text;
}

std::string subject_of(const X509* certificate) {
  return name_of(X509_get_subject_name(certificate));
}

std::string issuer_of(const X509* certificate) {
  return name_of(X509_get_issuer_name(certificate));
}

std::int64_t begin_of(const X509* certificate) {
  return seconds_of(X509_get0_notBefore(certificate));
}

std::int64_t end_of(const X509* certificate) { return seconds_of(X509_get0_notAfter(certificate)); }

bool is_for(const X509* certificate, const std::string& host) {
  // The function takes a certificate that is not const, to keep what it has parsed.
  X509* const given =
      const_cast<X509*>(certificate);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  if (is_address(host)) return X509_check_ip_asc(given, host.c_str(), 0) == 1;
  return X509_check_host(given, host.c_str(), host.size(),
                         X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS,
                         nullptr) == 1;
}

}  // namespace trireme::launch
