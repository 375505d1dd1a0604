// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/atomic_file.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <csignal>

namespace trireme {
namespace {

using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using testing::HasSubstr;

std::size_t entries(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator begin(folder);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

TEST(AtomicFile, AppearsWithItsWholeContentOnCommit) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "state.json";
  AtomicFile file(path);
  file.write("first ");
  EXPECT_FALSE(std::filesystem::exists(path));
  file.write("second");
  file.commit();
  EXPECT_EQ(read_file(path), "first second");
  EXPECT_EQ(entries(folder.path()), 1U);
}

TEST(AtomicFile, LeavesTheOldFileAndNothingElseWithoutCommit) {
  const TemporaryFolder folder;
  const auto path = folder.write("state.json", "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(folder.path()), 1U);
}

TEST(AtomicFile, ReplacesTheOldFile) {
  const TemporaryFolder folder;
  const auto path = folder.write("state.json", "a long old text");
  AtomicFile file(path);
  file.write("new");
  file.commit();
  EXPECT_EQ(read_file(path), "new");
}

TEST(AtomicFile, SaysWhichFolderIsMissing) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "missing" / "file";
  const std::string message = message_of<CheckpointError>([&] { AtomicFile file(path); });
  EXPECT_THAT(message, HasSubstr("cannot create " + path.string() +
                                 ": No such file or directory (errno 2)"));
  EXPECT_THAT(message, HasSubstr("hint: check that the folder exists"));
}

TEST(AtomicFile, KeepsTheOldFileWhereTheDiskIsFull) {
  const TemporaryFolder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "mounting a small file system needs root";
  }
  const auto path = folder.write("state.json", "old");
  const std::string message = message_of<CheckpointError>([&] {
    AtomicFile file(path);
    file.write(std::string(1 << 20, 'x'));
    file.commit();
  });
  EXPECT_THAT(message, HasSubstr("cannot write " + path.string() + ": No space left on device"));
  EXPECT_THAT(message, HasSubstr("the previous file is untouched"));
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(folder.path()), 1U);
  ::umount(folder.path().c_str());
}

TEST(AtomicFile, ReportsAWriteThatTheSystemRefuses) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "large";
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = message_of<CheckpointError>([&] {
      AtomicFile file(path);
      file.write(std::string(5000, 'x'));
    });
    ::_exit(message.starts_with("cannot write " + path.string() + ": File too large") ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(entries(folder.path()), 0U);
}

}  // namespace
}  // namespace trireme
