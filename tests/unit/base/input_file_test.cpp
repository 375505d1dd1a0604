// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/input_file.h>

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <tests/temporary_folder.h>

#include <cerrno>

namespace trireme {
namespace {

using test::TemporaryFolder;

TEST(InputFile, ReadsARegularFileAndFollowsLinks) {
  const TemporaryFolder folder;
  const auto path = folder.write("file", std::string("a\0b", 3));
  std::filesystem::create_symlink(path, folder / "link");
  for (const auto& name : {path, folder / "link"}) {
    InputFile input = open_input(name);
    ASSERT_TRUE(input);
    EXPECT_EQ(input.bytes, 3);
    EXPECT_EQ(read_text(input, 3), std::string("a\0b", 3));
  }
}

TEST(InputFile, NamesWhatIsNoRegularFileWithoutWaitingForIt) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(open_input(folder / "fifo").problem, "is a FIFO, expected a regular file");
  EXPECT_EQ(open_input(folder.path()).problem, "is a folder, expected a regular file");
  EXPECT_EQ(open_input("/dev/zero").problem, "is a device, expected a regular file");
  EXPECT_EQ(open_input(folder / "absent").problem,
            "cannot be opened: No such file or directory (errno 2)");
  EXPECT_EQ(open_input(folder / "absent").error_number, ENOENT);
}

TEST(InputFile, AllocatesNothingForAFileThatIsTooLarge) {
  const TemporaryFolder folder;
  const auto path = folder.write("sparse", "");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 42U);
  InputFile input = open_input(path);
  EXPECT_EQ(read_text(input, 1000), std::nullopt);
  EXPECT_EQ(input.problem, "has 4398046511104 bytes, expected at most 1000");
}

TEST(InputFile, HasTheCauseWhereReadingFails) {
  InputFile input = open_input("/proc/self/mem");  // a regular file whose first page is no memory
  ASSERT_TRUE(input);
  input.bytes = 1;
  EXPECT_EQ(read_text(input, 1), std::nullopt);
  EXPECT_THAT(input.problem, testing::HasSubstr("cannot be read: Input/output error (errno 5)"));
}

TEST(InputFile, OfAnyKindIsReadToItsEnd) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_any_file(folder.write("file", std::string("a\0b", 3))), std::string("a\0b", 3));
  EXPECT_EQ(read_any_file(folder.write("empty", "")), "");
  EXPECT_EQ(read_any_file("/dev/null"), "");
  EXPECT_EQ(read_any_file(folder.path()), std::nullopt);
  EXPECT_EQ(read_any_file(folder / "missing"), std::nullopt);
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace trireme
