// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/status_address.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme::launch {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

TEST(StatusAddress, IsAUrl) {
  const auto address = parse_status_address("it", "http://127.0.0.1:80/?x=1&token=ab");
  EXPECT_EQ(address.place, (HostAndPort{.host = "127.0.0.1", .port = 80}));
  EXPECT_EQ(address.token, "ab");
  EXPECT_FALSE(address.is_encrypted);
  EXPECT_EQ(url_of(address), "http://127.0.0.1:80/?token=ab");
  const auto encrypted = parse_status_address("it", "https://[::1]:8080");
  EXPECT_TRUE(encrypted.is_encrypted);
  EXPECT_EQ(url_of(encrypted), "https://[::1]:8080/");
  EXPECT_EQ(parse_status_address("it", "host0:1").place.host, "host0");
  EXPECT_THAT(message_of<ConfigError>([] { parse_status_address("it", "http://host0/"); }),
              HasSubstr("it"));
}

TEST(StatusAddress, OfAnOptionIsAPortOrAnAddressWithOne) {
  EXPECT_EQ(parse_status_place("0"), (HostAndPort{.host = "127.0.0.1", .port = 0}));
  EXPECT_EQ(parse_status_place("0.0.0.0:80"), (HostAndPort{.host = "0.0.0.0", .port = 80}));
  EXPECT_EQ(parse_status_place("[::1]:80"), (HostAndPort{.host = "::1", .port = 80}));
  for (const std::string text : {"", "x", ":80", "host:", "host:x", "65536", "-1"}) {
    EXPECT_THAT(message_of<ConfigError>([&] { parse_status_place(text); }),
                HasSubstr("--status is '" + text + "', expected a port from 0 to 65535"));
  }
}

TEST(StatusAddress, IsInAFileThatOthersCannotRead) {
  const test::TemporaryFolder temporary;
  const auto file = temporary.write("status_url", "an older one");
  std::filesystem::permissions(file, std::filesystem::perms::all);
  write_private_file(file, "http://a:1/?token=xy\n");
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(read_status_address(temporary.path()).token, "xy");
  EXPECT_EQ(read_status_address(file).place.host, "a");
  EXPECT_THAT(message_of<ConfigError>([&] { read_status_address(temporary / "none"); }),
              AllOf(HasSubstr("cannot read"), HasSubstr("--log-dir of trireme run")));
  EXPECT_THAT(message_of<ConfigError>([&] { write_private_file(temporary / "no" / "file", "x"); }),
              HasSubstr("cannot write the file"));
}

}  // namespace
}  // namespace trireme::launch
