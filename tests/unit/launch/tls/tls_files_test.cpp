// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/tls/tls_files.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <map>
#include <string>

namespace trireme::launch {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

std::optional<TlsFiles> files_of(const Variables& variables, const TlsOptions& options = {}) {
  return read_tls_files(Environment(variables), options);
}

TEST(ReadTlsFiles, FindsNoneUnlessTheyAreNamed) {
  EXPECT_EQ(files_of({}), std::nullopt);
  for (const char* off : {"0", "False", "false", ""})
    EXPECT_EQ(files_of({{"MS_ENABLE_SSL", off}}), std::nullopt);
}

TEST(ReadTlsFiles, TakesAFolderOrSingleFiles) {
  const TlsFiles folder{
      .certificate = "f/certificate.pem", .key = "f/key.pem", .authority = "f/ca.pem"};
  EXPECT_EQ(files_of({{"TRIREME_TLS", "f"}}), folder);
  EXPECT_EQ(files_of({{"TRIREME_TLS", "f"}, {"MS_ENABLE_SSL", "true"}}), folder);
  const TlsFiles single{.certificate = "a", .key = "b", .authority = "c"};
  EXPECT_EQ(
      files_of(
          {{"TRIREME_TLS_CERTIFICATE", "a"}, {"TRIREME_TLS_KEY", "b"}, {"TRIREME_TLS_CA", "c"}}),
      single);
  const TlsFiles mixed{.certificate = "f/certificate.pem", .key = "b", .authority = "f/ca.pem"};
  EXPECT_EQ(files_of({{"TRIREME_TLS", "f"}, {"TRIREME_TLS_KEY", "b"}}), mixed);
}

TEST(ReadTlsFiles, PrefersOptionsAndThenIgnoresVariables) {
  const TlsFiles folder{
      .certificate = "o/certificate.pem", .key = "o/key.pem", .authority = "o/ca.pem"};
  EXPECT_EQ(files_of({{"TRIREME_TLS", "f"}, {"TRIREME_TLS_KEY", "b"}}, {.folder = "o"}), folder);
  EXPECT_EQ(files_of({{"MS_ENABLE_SSL", "True"}}, {.folder = "o"}), folder);
}

TEST(ReadTlsFiles, NamesWhatIsMissing) {
  EXPECT_THAT(message_of<ConfigError>([] { files_of({{"TRIREME_TLS_KEY", "k"}}); }),
              AllOf(HasSubstr("TRIREME_TLS_KEY is 'k' but TRIREME_TLS_CERTIFICATE and "
                              "TRIREME_TLS_CA are not set"),
                    HasSubstr("or TRIREME_TLS to a folder")));
  EXPECT_THAT(message_of<ConfigError>([] { files_of({}, {.certificate = "c", .key = "k"}); }),
              HasSubstr("--tls-key is 'k' but --tls-ca is not set"));
}

TEST(ReadTlsFiles, NamesASwitchOfMindSporeThatSaysOtherwise) {
  EXPECT_THAT(message_of<ConfigError>([] { files_of({{"MS_ENABLE_SSL", "True"}}); }),
              AllOf(HasSubstr("MS_ENABLE_SSL is 'True', but nothing names the certificate"),
                    HasSubstr("TRIREME_TLS=FOLDER")));
  EXPECT_THAT(
      message_of<ConfigError>([] { files_of({{"MS_ENABLE_SSL", "False"}, {"TRIREME_TLS", "f"}}); }),
      HasSubstr("MS_ENABLE_SSL is 'False' but TRIREME_TLS or its single files are set"));
}

}  // namespace
}  // namespace trireme::launch
