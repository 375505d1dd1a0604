// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/launch/status/status_client.h>
#include <trireme/launch/tls/tls_session.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/launch/status/running_status.h>
#include <tests/unit/launch/tls/host_files.h>

#include <string>

namespace trireme::launch {
namespace {

using std::chrono::seconds;
using test::HostFiles;
using test::message_of;
using test::RunningStatus;
using test::talk;
using testing::HasSubstr;
using testing::StartsWith;

TEST(EncryptedStatus, AnswersThoseWithACertificateOfTheRun) {
  const HostFiles files;
  const TlsFiles own = files.make("own");
  const TlsContext context(own);
  RunningStatus running({.tls = &context});
  running.bytes_of_name = 100'000;  // several records
  const StatusAddress address{.place = running.place(), .is_encrypted = true};
  const std::string json = fetch_status(address, "/status.json", files.make("user"), seconds(60));
  EXPECT_THAT(json, HasSubstr("\"run\":\"xxxxxxxxxx"));
  EXPECT_TRUE(json.ends_with("}\n"));
}

TEST(EncryptedStatus, RefusesOthers) {
  const HostFiles files;
  const HostFiles others;
  const TlsContext context(files.make("own"));
  const RunningStatus running({.tls = &context});
  EXPECT_THAT(talk(running.connect(), "GET / HTTP/1.1\r\n\r\n"),
              HasSubstr("this status is served by HTTPS only"));
  EXPECT_EQ(running.refused("not encrypted"), 1);
  // This user trusts the run, and the run does not trust the user.
  const TlsFiles stranger = others.make("stranger");
  others.folder().write("stranger/ca.pem",
                        others.authority().certificate + files.authority().certificate);
  const StatusAddress address{.place = running.place(), .is_encrypted = true};
  EXPECT_THAT(message_of<ConfigError>([&] { fetch_status(address, "/", stranger, seconds(60)); }),
              HasSubstr("the encryption (TLS) with 127.0.0.1:"));
  EXPECT_EQ(running.refused(std::string(text_of(TlsCause::kOtherAuthority))), 1);
}

}  // namespace
}  // namespace trireme::launch
