// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/journal.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace trireme::launch {
namespace {

using test::message_of;
using test::read_file;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

TEST(Journal, HasALineForEachEvent) {
  const test::TemporaryFolder temporary;
  Journal journal(temporary / "journal.jsonl");
  journal.write(
      "start",
      {{"run", std::string("a\nb")}, {"attempt", std::int64_t{2}}, {"speed", 1.5}, {"ok", true}});
  journal.write("end", {});
  EXPECT_THAT(read_file(journal.path()),
              ContainsRegex("^\\{\"time\":[0-9.]+,\"event\":\"start\",\"run\":\"a\\\\nb\","
                            "\"attempt\":2,\"speed\":1.5,\"ok\":true\\}\n"
                            "\\{\"time\":[0-9.]+,\"event\":\"end\"\\}\n$"));
}

TEST(Journal, EndsALineThatWasCut) {
  const test::TemporaryFolder temporary;
  const auto file = temporary.write("journal.jsonl", "{\"time\":1}\n{\"ti");
  Journal(file).write("end", {});
  EXPECT_THAT(read_file(file), ContainsRegex("^\\{\"time\":1\\}\n\\{\"ti\n\\{\"time\":[0-9.]+,"));
}

TEST(Journal, RefusesFilesThatCannotBeAppendedTo) {
  const test::TemporaryFolder temporary;
  EXPECT_THAT(message_of<ConfigError>([&] { Journal(temporary / "none" / "journal"); }),
              AllOf(HasSubstr("cannot open the journal"), HasSubstr("No such file")));
  EXPECT_THAT(message_of<ConfigError>([&] { Journal("/dev/null"); }),
              HasSubstr("is no regular file"));
}

TEST(Journal, IsOfOneProcess) {
  const test::TemporaryFolder temporary;
  const auto file = temporary / "journal.jsonl";
  const Journal journal(file);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const Journal other(file);
    } catch (const ConfigError& refused) {
      const std::string text = refused.what();
      ::_exit(text.find("is in use by process") == std::string::npos ? 2 : 0);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace trireme::launch
