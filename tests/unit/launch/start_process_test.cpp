// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/start_process.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::launch {
namespace {

using test::message_of;
using test::TemporaryFolder;
using testing::HasSubstr;

TEST(FindProgram, SearchesThePathInOrderAndSkipsWhatCannotRun) {
  const TemporaryFolder folder;
  const std::string plain = folder.write("a/tool", "");
  const std::string runnable = folder.write("b/tool", "");
  std::filesystem::permissions(runnable, std::filesystem::perms::owner_all);
  const std::string a = folder.path() / "a";
  const std::string b = folder.path() / "b";
  EXPECT_EQ(find_program("tool", a + ":" + b), runnable);
  EXPECT_EQ(find_program(runnable, ""), runnable);
  EXPECT_THAT(
      message_of<ConfigError>([&] { find_program("tool", a); }),
      HasSubstr("cannot run " + plain + ": it is not executable\n  hint: chmod +x " + plain));
}

TEST(FindProgram, SaysWhereItLooked) {
  EXPECT_THAT(message_of<ConfigError>([] { find_program("no-such-tool", "/x:/y"); }),
              HasSubstr("program 'no-such-tool' not found in PATH (/x:/y)"));
}

TEST(FindProgram, RefusesFoldersAndMissingFiles) {
  EXPECT_THAT(message_of<ConfigError>([] { find_program("/usr/bin/", ""); }),
              HasSubstr("it is a folder"));
  EXPECT_THAT(message_of<ConfigError>([] { find_program("./no-such-tool", ""); }),
              HasSubstr("no such file"));
}

TEST(FindProgram, SaysThatSourceCodeIsToBeBuilt) {
  const TemporaryFolder folder;
  const std::string source = folder.write("main.cpp", "int main() {}");
  EXPECT_THAT(message_of<ConfigError>([&] { find_program(source, ""); }),
              testing::AllOf(HasSubstr("cannot run " + source + ": it is a source file"),
                             HasSubstr("hint: build it")));
  const std::string script = folder.write("train.py", "print(1)");
  EXPECT_THAT(message_of<ConfigError>([&] { find_program(script, ""); }), HasSubstr("python3"));
}

}  // namespace
}  // namespace trireme::launch
