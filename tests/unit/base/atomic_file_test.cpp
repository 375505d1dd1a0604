// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/atomic_file.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

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

void replace(const std::filesystem::path& path) {
  AtomicFile file(path);
  file.write("new");
  file.commit();
}

struct stat status_of(const std::filesystem::path& path) {
  struct stat status{};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0);
  return status;
}

TEST(AtomicFile, KeepsPermissionsAndOwnerOfTheFileBefore) {
  const TemporaryFolder folder;
  const auto path = folder.write("secret", "old");
  for (const mode_t mode : {0600U, 0640U, 0444U, 0755U}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    if (::geteuid() == 0) {
      ASSERT_EQ(::chown(path.c_str(), 12345, 23456), 0);
    }
    const struct stat earlier = status_of(path);
    replace(path);
    const struct stat now = status_of(path);
    EXPECT_EQ(read_file(path), "new");
    EXPECT_EQ(now.st_mode, earlier.st_mode);
    EXPECT_EQ(now.st_uid, earlier.st_uid);
    EXPECT_EQ(now.st_gid, earlier.st_gid);
  }
}

TEST(AtomicFile, WritesToWhereALinkLeadsAndLeavesTheLink) {
  const TemporaryFolder folder;
  const auto target = folder.write("deep/target", "old");
  const auto link = folder / "link";
  std::filesystem::create_symlink("deep/target", link);
  replace(link);
  EXPECT_EQ(read_file(target), "new");
  EXPECT_EQ(std::filesystem::read_symlink(link), "deep/target");
  EXPECT_EQ(entries(folder / "deep"), 1U);
  std::filesystem::remove(target);
  EXPECT_THAT(message_of<CheckpointError>([&] { replace(link); }),
              HasSubstr("cannot write " + link.string() + ": it is a link to a file"));
}

TEST(AtomicFile, GivesStreamsTheirBytesAndLeavesThem) {
  const TemporaryFolder folder;
  replace("/dev/null");
  EXPECT_TRUE(S_ISCHR(status_of("/dev/null").st_mode));
  EXPECT_THAT(message_of<CheckpointError>([&] { replace("/dev/full"); }),
              HasSubstr("cannot write /dev/full: No space left on device"));
  EXPECT_TRUE(S_ISCHR(status_of("/dev/full").st_mode));

  const auto fifo = folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(message_of<CheckpointError>([&] { replace(fifo); }),
              HasSubstr("a FIFO that nobody reads"));
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK));
  replace(fifo);
  std::array<char, 8> bytes{};
  EXPECT_EQ(::read(reader.get(), bytes.data(), bytes.size()), 3);
  EXPECT_TRUE(S_ISFIFO(status_of(fifo).st_mode));

  // What the process has open is not replaced under it.
  const auto path = folder.write("output", "old ");
  const UniqueFd open_one(::open(path.c_str(), O_WRONLY | O_APPEND));
  replace("/dev/fd/" + std::to_string(open_one.get()));
  EXPECT_EQ(read_file(path), "old new");
}

// Opened anew, it would be written from its beginning, over and under what the program prints.
TEST(AtomicFile, WritesWhereAStreamOfTheProgramIs) {
  const TemporaryFolder folder;
  const auto path = folder.write("output", "");
  const UniqueFd stream(::open(path.c_str(), O_WRONLY));
  ASSERT_EQ(::write(stream.get(), "before ", 7), 7);
  replace("/dev/fd/" + std::to_string(stream.get()));
  ASSERT_EQ(::write(stream.get(), " after", 6), 6);
  EXPECT_EQ(read_file(path), "before new after");
}

TEST(AtomicFile, ReplacesWhereALinkInSharedMemoryLeads) {
  // Not every link below /dev is a stream.
  const TemporaryFolder folder;
  const auto target = folder.write("target", "old");
  const std::filesystem::path link = "/dev/shm/trireme-test-link-" + std::to_string(::getpid());
  std::error_code failure;
  std::filesystem::create_symlink(target, link, failure);
  if (failure) GTEST_SKIP() << "no link can be made in /dev/shm: " << failure.message();
  replace(link);
  std::filesystem::remove(link);
  EXPECT_EQ(read_file(target), "new");
}

TEST(AtomicFile, RefusesAFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<CheckpointError>([&] { replace(folder.path()); }),
              HasSubstr("it is a folder"));
}

TEST(AtomicFile, HasATemporaryNameThatNobodyCanForesee) {
  const TemporaryFolder folder;
  const auto path = folder / "state.json";
  const auto victim = folder.write("victim", "mine");
  // What was the name of the temporary file once.
  const auto trap = folder / (".state.json." + std::to_string(::getpid()) + ".tmp");
  std::filesystem::create_symlink(victim, trap);
  AtomicFile one(path);
  AtomicFile other(path);  // as another rank has it, with the same number in a container
  one.write("first");
  other.write("second");
  EXPECT_EQ(entries(folder.path()), 4U);
  one.commit();
  EXPECT_EQ(read_file(path), "first");
  other.commit();
  EXPECT_EQ(read_file(path), "second");
  EXPECT_EQ(read_file(victim), "mine");
  EXPECT_TRUE(std::filesystem::is_symlink(trap));
}

TEST(AtomicFile, TakesNamesAsLongAsFileSystemsHave) {
  const TemporaryFolder folder;
  const std::string longest(255, 'n');
  replace(folder / longest);
  EXPECT_EQ(read_file(folder / longest), "new");
}

}  // namespace
}  // namespace trireme
