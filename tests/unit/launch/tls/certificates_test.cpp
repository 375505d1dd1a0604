// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/launch/tls/certificate_authority.h>
#include <trireme/launch/tls/certificate_check.h>
#include <trireme/launch/tls/openssl_objects.h>
#include <trireme/launch/tls/tls_session.h>

#include <gmock/gmock.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <tests/unit/launch/tls/host_files.h>

#include <filesystem>
#include <functional>
#include <string>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;
using test::around_now;
using test::HostFiles;
using test::kDay;
using test::kHour;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

int mode_of(const fs::path& file) {
  struct stat status = {};
  EXPECT_EQ(::stat(file.c_str(), &status), 0) << file;
  return static_cast<int>(status.st_mode & 0777U);
}

CertificateOrder order_in(const TemporaryFolder& folder, std::vector<std::string> hosts) {
  return {.authority_folder = folder / "ca", .folder = folder / "hosts", .hosts = std::move(hosts)};
}

TEST(MakeCertificates, MakesFilesThatFitTogether) {
  const TemporaryFolder folder;
  const MadeCertificates made =
      make_certificates(order_in(folder, {"host0,10.0.0.1,fd00::1", "host-1.example.org"}));
  EXPECT_TRUE(made.has_made_authority);
  EXPECT_THAT(made.folders,
              ElementsAre(folder / "hosts" / "host0", folder / "hosts" / "host-1.example.org"));
  for (const fs::path& host : made.folders) {
    EXPECT_EQ(mode_of(host / "key.pem"), 0600);
    const CertificateReport report = check_certificates(tls_files_of(host), {});
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_THAT(report.warnings, IsEmpty());
    EXPECT_THAT(report.text, HasSubstr(" days left"));
    const TlsContext usable(tls_files_of(host));
  }
  EXPECT_EQ(mode_of(folder / "ca" / "ca_key.pem"), 0600);
  EXPECT_EQ(mode_of(folder / "ca"), 0700);
  const TlsFiles first = tls_files_of(made.folders.front());
  EXPECT_THAT(check_certificates(first, {"host0", "10.0.0.1", "fd00::1"}).problems, IsEmpty());
  const CertificateReport other = check_certificates(first, {"host1"});
  EXPECT_THAT(other.text, HasSubstr("for        host0, 10.0.0.1, fd00::1\n"));
  EXPECT_THAT(other.problems,
              ElementsAre(HasSubstr("is for host0, 10.0.0.1, fd00::1, and not for host1")));
}

TEST(MakeCertificates, UsesAnAuthorityAgainAndReplacesNothingUnasked) {
  const TemporaryFolder folder;
  make_certificates(order_in(folder, {"host0"}));
  const std::string authority = read_file(folder / "ca" / "ca.pem");
  const std::string key = read_file(folder / "hosts" / "host0" / "key.pem");
  CertificateOrder order = order_in(folder, {"host1", "host0"});
  EXPECT_THAT(message_of<ConfigError>([&] { make_certificates(order); }),
              AllOf(HasSubstr("host0/certificate.pem exists already"), HasSubstr("--replace")));
  EXPECT_FALSE(fs::exists(folder / "hosts" / "host1")) << "nothing is made if something is wrong";
  order.replaces = true;
  EXPECT_FALSE(make_certificates(order).has_made_authority);
  EXPECT_EQ(read_file(folder / "ca" / "ca.pem"), authority);
  EXPECT_NE(read_file(folder / "hosts" / "host0" / "key.pem"), key);
  EXPECT_EQ(mode_of(folder / "hosts" / "host0" / "key.pem"), 0600);
  const TlsContext usable(tls_files_of(folder / "hosts" / "host1"));
}

struct OrderMistake {
  const char* name;
  std::function<void(CertificateOrder&)> change;
  const char* expected;
};

class MakeCertificatesMistake : public testing::TestWithParam<OrderMistake> {};

TEST_P(MakeCertificatesMistake, IsNamed) {
  const TemporaryFolder folder;
  CertificateOrder order = order_in(folder, {"host0"});
  GetParam().change(order);
  EXPECT_THAT(message_of<ConfigError>([&] { make_certificates(order); }),
              AllOf(HasSubstr(GetParam().expected), HasSubstr("hint: ")));
  EXPECT_FALSE(fs::exists(folder / "hosts" / "host0" / "certificate.pem"));
}

INSTANTIATE_TEST_SUITE_P(
    Orders, MakeCertificatesMistake,
    testing::Values(
        OrderMistake{"Path", [](auto& order) { order.hosts = {"../host0"}; },
                     "the host '../host0' contains '../host0', expected a name or an address"},
        OrderMistake{"Port", [](auto& order) { order.hosts = {"host0:29500"}; },
                     "contains 'host0:29500'"},
        OrderMistake{"Injection", [](auto& order) { order.hosts = {"host0,DNS:other"}; },
                     "contains 'DNS:other'"},
        OrderMistake{"Empty", [](auto& order) { order.hosts = {"host0,"}; }, "contains ''"},
        OrderMistake{"Twice", [](auto& order) { order.hosts = {"host0", "host0,10.0.0.1"}; },
                     "the host 'host0' is given twice"},
        OrderMistake{"ShortAuthority", [](auto& order) { order.authority_days = 30; },
                     "--ca-days is 30, and --days is 365"},
        OrderMistake{"AuthorityFolder", [](auto& order) { order.authority_folder = "/proc/ca"; },
                     "cannot make the folder /proc/ca"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(MakeCertificates, RefusesAnAuthorityThatCannotBeUsed) {
  const TemporaryFolder folder;
  CertificateOrder order = order_in(folder, {"host0"});
  order.days = 10;
  order.authority_days = 20;
  make_certificates(order);
  order.hosts = {"host1"};
  order.days = 30;
  EXPECT_THAT(message_of<ConfigError>([&] { make_certificates(order); }),
              AllOf(HasSubstr("and certificates for 30 days would be valid longer"),
                    HasSubstr("give fewer --days")));
  order.days = 10;
  fs::permissions(folder / "ca" / "ca_key.pem", fs::perms::group_read, fs::perm_options::add);
  EXPECT_THAT(message_of<ConfigError>([&] { make_certificates(order); }),
              HasSubstr("ca_key.pem has mode 0640"));
  // The certificate of a host is no authority.
  fs::copy_file(folder / "hosts" / "host0" / "key.pem", folder / "ca" / "ca_key.pem",
                fs::copy_options::overwrite_existing);
  fs::permissions(folder / "ca" / "ca_key.pem", fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THAT(message_of<ConfigError>([&] { make_certificates(order); }),
              HasSubstr("ca_key.pem is not that of the certificate"));
  fs::copy_file(folder / "hosts" / "host0" / "certificate.pem", folder / "ca" / "ca.pem",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(message_of<ConfigError>([&] { make_certificates(order); }),
              HasSubstr("is not that of an authority"));
  fs::remove(folder / "ca" / "ca.pem");
  EXPECT_THAT(message_of<ConfigError>([&] { make_certificates(order); }),
              HasSubstr("cannot read the authority "));
}

// What is wrong is found when the files are examined, and when they are to be used.
void expect_problem(const TlsFiles& files, const std::string& expected) {
  const CertificateReport report = check_certificates(files, {});
  EXPECT_THAT(report.problems, testing::Contains(HasSubstr(expected)));
  EXPECT_THAT(message_of<ConfigError>([&] { TlsContext{files}; }),
              AllOf(HasSubstr(expected), HasSubstr("hint: ")));
}

TEST(CertificateFiles, MustFitTogether) {
  const HostFiles hosts;
  TlsFiles files = hosts.make("host0");
  const TlsFiles other = hosts.make("host1");
  files.key = other.key;
  expect_problem(files, "host1/key.pem is not that of the certificate ");
  files = hosts.make("host0");
  const HostFiles others;
  files.authority = others.make("host0").authority;
  expect_problem(files, "is by 'Trireme authority ");
}

TEST(CertificateFiles, MustBeValidNow) {
  const HostFiles hosts;
  expect_problem(hosts.make("old", {"host0"}, around_now(2 * kHour, -kHour)),
                 "old/certificate.pem has expired: host0 was valid until ");
  expect_problem(hosts.make("early", {"host0"}, around_now(-kHour, 2 * kHour)),
                 "early/certificate.pem is not valid yet: host0 is valid from ");
  const CertificateReport report =
      check_certificates(hosts.make("short", {"host0"}, around_now(kHour, 3 * kDay + 60)), {});
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("lasts only 3 more days")));
}

TEST(CertificateFiles, MustBeForServersAndClients) {
  const HostFiles hosts;
  expect_problem(hosts.write("authority", hosts.authority()),
                 "authority/certificate.pem is not for servers and clients of TLS");
}

TEST(CertificateFiles, MustBeReadable) {
  const HostFiles hosts;
  TlsFiles files = hosts.make("host0");
  files.certificate = hosts.folder() / "none.pem";
  expect_problem(files, "none.pem: No such file or directory");
  files.certificate = hosts.folder().path();
  expect_problem(files, " is no regular file");
  files.certificate = hosts.folder().write("text.pem", "no certificate");
  expect_problem(files, "text.pem contains no certificate in the format PEM");
  files.certificate = hosts.folder().write(
      "damaged.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  expect_problem(files, "damaged.pem is damaged: ");
  files.certificate = hosts.folder().write("large.pem", std::string((1 << 20) + 20'000, 'x'));
  expect_problem(files, "large.pem has more than 1048576 bytes");
  files = hosts.make("host0");
  files.authority = hosts.folder() / "none.pem";
  expect_problem(files, "cannot read the authority ");
  files = hosts.make("host0");
  test::write_file(files.key, "no key");
  expect_problem(files, "key.pem contains no private key in the format PEM");
}

TEST(CertificateFiles, RefuseAKeyThatOthersCanRead) {
  const HostFiles hosts;
  const TlsFiles files = hosts.make("host0");
  fs::permissions(files.key, fs::perms::others_read, fs::perm_options::add);
  expect_problem(files, "has mode 0604: other users can read or write it, expected 0600");
  EXPECT_THAT(message_of<ConfigError>([&] { TlsContext{files}; }),
              HasSubstr("chmod 600 " + files.key.string()));
}

// OpenSSL used to ask at the terminal, and to wait.
TEST(CertificateFiles, RefuseAKeyWithAPassphrase) {
  const HostFiles hosts;
  const TlsFiles files = hosts.make("host0");
  const std::string text = read_file(files.key);
  const BioPointer plain(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  const KeyPointer key(PEM_read_bio_PrivateKey(plain.get(), nullptr, nullptr, nullptr));
  const BioPointer encrypted(BIO_new(BIO_s_mem()));
  ASSERT_EQ(PEM_write_bio_PKCS8PrivateKey(encrypted.get(), key.get(), EVP_aes_128_cbc(), "secret",
                                          6, nullptr, nullptr),
            1);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(encrypted.get(), &data);
  test::write_file(files.key, {data, static_cast<std::size_t>(size)});
  expect_problem(files, "key.pem is encrypted by a passphrase, expected one without");
}

}  // namespace
}  // namespace trireme::launch
