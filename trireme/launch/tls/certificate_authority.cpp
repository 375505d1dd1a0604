// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/tls/certificate_authority.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/unique_fd.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/tls/certificate_files.h>

#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <set>
#include <string_view>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAuthorityKeyFile = "ca_key.pem";
// Certificates begin a little earlier than now, because clocks of hosts differ.
constexpr std::int64_t kClockDifference = 3600;

KeyPointer make_key() {
  KeyPointer key(EVP_EC_gen("P-256"));
  check_openssl(key != nullptr, "EVP_EC_gen");
  return key;
}

std::string pem_of(const BioPointer& bio) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string pem_of(const EVP_PKEY* key) {
  const BioPointer bio(BIO_new(BIO_s_mem()));
  check_openssl(
      PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
      "PEM_write_bio_PrivateKey");
  return pem_of(bio);
}

std::string pem_of(const X509* certificate) {
  const BioPointer bio(BIO_new(BIO_s_mem()));
  check_openssl(PEM_write_bio_X509(bio.get(), certificate) == 1, "PEM_write_bio_X509");
  return pem_of(bio);
}

// A certificate that is being made.
class Draft {
 public:
  Draft(EVP_PKEY* key, const std::string& name, const Validity& validity)
      : certificate_(X509_new()) {
    constexpr int kSerialBits = 127;  // positive, and within the 20 bytes of RFC 5280
    constexpr long kVersion3 = 2;
    X509* const one = certificate_.get();
    const NumberPointer serial(BN_new());
    check_openssl(one != nullptr && serial != nullptr, "X509_new");
    check_openssl(BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1,
                  "BN_rand");
    check_openssl(
        X509_set_version(one, kVersion3) == 1 &&
            BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(one)) != nullptr &&
            ASN1_TIME_set(X509_getm_notBefore(one), validity.begin) != nullptr &&
            ASN1_TIME_set(X509_getm_notAfter(one), validity.end) != nullptr &&
            X509_set_pubkey(one, key) == 1 &&
            X509_NAME_add_entry_by_NID(X509_get_subject_name(one), NID_commonName, MBSTRING_UTF8,
                                       reinterpret_cast<const unsigned char*>(name.data()),
                                       static_cast<int>(name.size()), -1, 0) == 1,
        "X509");
  }

  X509* get() const { return certificate_.get(); }

  // Adds an extension in the notation of OpenSSL's configuration files.
  void add(int kind, const std::string& value, X509* issuer) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, get(), nullptr, nullptr, 0);
    const ExtensionPointer extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
    check_openssl(extension != nullptr && X509_add_ext(get(), extension.get(), -1) == 1,
                  "X509V3_EXT_conf_nid");
  }

  // Signs it, and returns it.
  CertificatePointer sign(const X509* issuer, EVP_PKEY* key_of_issuer) {
    check_openssl(X509_set_issuer_name(get(), X509_get_subject_name(issuer)) == 1 &&
                      X509_sign(get(), key_of_issuer, EVP_sha256()) > 0,
                  "X509_sign");
    return std::move(certificate_);
  }

 private:
  CertificatePointer certificate_;
};

std::vector<std::string> names_of(const std::string& host) {
  constexpr std::size_t kLongest = 253;  // of a name in the domain name system
  std::vector<std::string> names;
  std::size_t begin = 0;
  while (begin <= host.size()) {
    const std::size_t end = std::min(host.find(',', begin), host.size());
    const std::string name = host.substr(begin, end - begin);
    const bool has_letters_only = std::ranges::all_of(name, [](char letter) {
      return is_ascii_alphanumeric(letter) || letter == '.' || letter == '-' || letter == '_';
    });
    const bool is_name = has_letters_only && !name.empty() && name.size() <= kLongest &&
                         is_ascii_alphanumeric(name.front());
    if (!is_name && !is_address(name)) {
      throw ConfigError(
          join_message("the host '", host, "' contains '", name,
                       "', expected a name or an address, or several with commas between them"),
          "for instance host1, 10.0.0.1, fd00::1 or host1,10.0.0.1; ports and brackets do not "
          "belong to it");
    }
    names.push_back(name);
    begin = end + 1;
  }
  return names;
}

// Writes a file as a whole or not at all.
void write_file(const fs::path& file, const std::string& text, mode_t mode) {
  std::string temporary = file.string() + ".XXXXXX";
  const UniqueFd made(::mkostemp(temporary.data(), O_CLOEXEC));
  const auto fail = [&] {
    const int failure = errno;
    if (made) ::unlink(temporary.c_str());
    throw ConfigError(join_message("cannot write ", file.string(), ": ", describe_errno(failure)),
                      "choose folders that may be written to, on a disk that is not full");
  };
  if (!made || ::fchmod(made.get(), mode) != 0) fail();
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t count = ::write(made.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail();
    written += static_cast<std::size_t>(count);
  }
  if (::fsync(made.get()) != 0 || ::rename(temporary.c_str(), file.c_str()) != 0) fail();
}

void make_folder(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (!failure) return;
  throw ConfigError(
      join_message("cannot make the folder ", folder.string(), ": ", failure.message()),
      "choose folders that may be written to");
}

Validity from_now(int days) {
  const std::int64_t now = std::time(nullptr);
  return {.begin = now - kClockDifference, .end = now + days * kSecondsOfDay};
}

// Reads the authority of an earlier call.
KeyAndCertificate read_authority(const CertificateOrder& order, const fs::path& certificate_file,
                                 const fs::path& key_file) {
  Credentials read{.certificates = read_certificates(certificate_file, "the authority"),
                   .key = read_key(key_file),
                   .authorities = {}};
  X509* const certificate = read.certificates.front().get();
  check_key(read, {.certificate = certificate_file, .key = key_file, .authority = {}});
  if (X509_check_ca(certificate) != 1) {
    throw ConfigError(
        join_message("the certificate ", certificate_file.string(), " is not that of an authority"),
        "give another --ca-folder; a new one gets a new authority");
  }
  const std::int64_t end = end_of(certificate);
  if (end < from_now(order.days).end) {
    throw ConfigError(
        join_message("the authority ", certificate_file.string(), " is valid until ", utc_text(end),
                     ", and certificates for ", order.days, " days would be valid longer"),
        "give fewer --days, or another --ca-folder for a new authority, whose certificates all "
        "hosts then need");
  }
  return {.key = pem_of(read.key.get()), .certificate = pem_of(certificate)};
}

}  // namespace

KeyAndCertificate make_authority(const Validity& validity) {
  constexpr std::size_t kDigits = 8;
  const KeyPointer key = make_key();
  const std::string name = "Trireme authority " + make_secret().substr(0, kDigits);
  Draft draft(key.get(), name, validity);
  draft.add(NID_basic_constraints, "critical,CA:TRUE,pathlen:0", draft.get());
  draft.add(NID_key_usage, "critical,keyCertSign,cRLSign", draft.get());
  draft.add(NID_subject_key_identifier, "hash", draft.get());
  const CertificatePointer certificate = draft.sign(draft.get(), key.get());
  return {.key = pem_of(key.get()), .certificate = pem_of(certificate.get())};
}

KeyAndCertificate make_certificate(const KeyAndCertificate& authority,
                                   const std::vector<std::string>& names,
                                   const Validity& validity) {
  constexpr std::size_t kLongestCommonName = 64;
  const CertificatePointer issuer(
      PEM_read_bio_X509(memory_of(authority.certificate).get(), nullptr, nullptr, nullptr));
  const KeyPointer key_of_issuer(
      PEM_read_bio_PrivateKey(memory_of(authority.key).get(), nullptr, nullptr, nullptr));
  check_openssl(issuer != nullptr && key_of_issuer != nullptr, "PEM_read_bio");
  const KeyPointer key = make_key();
  std::string alternatives;
  for (const std::string& name : names) {
    alternatives +=
        join_message(alternatives.empty() ? "" : ",", is_address(name) ? "IP:" : "DNS:", name);
  }
  Draft draft(key.get(), names.front().substr(0, kLongestCommonName), validity);
  draft.add(NID_basic_constraints, "critical,CA:FALSE", issuer.get());
  draft.add(NID_key_usage, "critical,digitalSignature", issuer.get());
  draft.add(NID_ext_key_usage, "serverAuth,clientAuth", issuer.get());
  draft.add(NID_subject_key_identifier, "hash", issuer.get());
  draft.add(NID_authority_key_identifier, "keyid:always", issuer.get());
  draft.add(NID_subject_alt_name, alternatives, issuer.get());
  const CertificatePointer certificate = draft.sign(issuer.get(), key_of_issuer.get());
  return {.key = pem_of(key.get()), .certificate = pem_of(certificate.get())};
}

MadeCertificates make_certificates(const CertificateOrder& order) {
  std::vector<std::vector<std::string>> hosts;
  std::set<std::string> seen;
  MadeCertificates made;
  for (const std::string& host : order.hosts) {
    hosts.push_back(names_of(host));
    const std::string& name = hosts.back().front();
    const fs::path folder = order.folder / name;
    made.folders.push_back(folder);
    if (!seen.insert(name).second) {
      throw ConfigError(join_message("the host '", name, "' is given twice"),
                        "give all names of a host together: host1,10.0.0.1");
    }
    for (const fs::path& file : {folder / kCertificateFile, folder / kKeyFile}) {
      if (order.replaces || !fs::exists(file)) continue;
      throw ConfigError(join_message(file.string(), " exists already"),
                        "--replace makes a new key and a new certificate in its place, with which "
                        "the host must then be started");
    }
  }
  made.authority = order.authority_folder / kAuthorityFile;
  const fs::path key_file = order.authority_folder / kAuthorityKeyFile;
  made.has_made_authority = !fs::exists(made.authority) && !fs::exists(key_file);
  KeyAndCertificate authority;
  if (made.has_made_authority) {
    if (order.authority_days < order.days) {
      throw ConfigError(join_message("--ca-days is ", order.authority_days, ", and --days is ",
                                     order.days, ", expected an authority that lasts longer"),
                        "give more --ca-days");
    }
    authority = make_authority(from_now(order.authority_days));
    make_folder(order.authority_folder);
    ::chmod(order.authority_folder.c_str(), S_IRWXU);
    write_file(key_file, authority.key, S_IRUSR | S_IWUSR);
    write_file(made.authority, authority.certificate, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  } else {
    authority = read_authority(order, made.authority, key_file);
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const KeyAndCertificate one = make_certificate(authority, hosts[i], from_now(order.days));
    const fs::path& folder = made.folders[i];
    make_folder(folder);
    write_file(folder / kKeyFile, one.key, S_IRUSR | S_IWUSR);
    write_file(folder / kCertificateFile, one.certificate, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
    write_file(folder / kAuthorityFile, authority.certificate,
               S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  }
  return made;
}

}  // namespace trireme::launch
