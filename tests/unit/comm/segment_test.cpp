// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/segment.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trireme::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::size_t kBytes = 12288;

// Names in /dev/shm that this process made.
std::vector<std::string> own_names() {
  std::vector<std::string> names;
  const std::string prefix = join_message("trireme-", ::getpid(), "-");
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with(prefix)) names.push_back(entry.path());
  }
  return names;
}

// A process made by fork() that goes on with `body` and then waits to be killed.
class Child {
 public:
  template <typename Body>
  explicit Child(const Body& body) {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
    UniqueFd ready(ends[0]);
    UniqueFd told(ends[1]);
    process_ = ::fork();
    if (process_ == 0) {
      body();
      const char byte = 1;
      if (::write(told.get(), &byte, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    told.reset();
    char byte = 0;
    EXPECT_EQ(::read(ready.get(), &byte, 1), 1) << "the child failed";
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { kill(); }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }

 private:
  pid_t process_ = -1;
};

class Segments : public ::testing::TestWithParam<Segment::Kind> {};

TEST_P(Segments, AreZeroedAndSeenByAllWhoOpenThem) {
  const Segment made = Segment::create(GetParam(), kBytes);
  ASSERT_EQ(made.size(), kBytes);
  EXPECT_TRUE(std::all_of(made.data(), made.data() + kBytes,
                          [](std::byte byte) { return byte == std::byte{0}; }));
  const Segment opened = Segment::open(made.address());
  EXPECT_EQ(opened.size(), kBytes);
  EXPECT_EQ(opened.data(), made.data()) << "threads of a process share one mapping";
  const Child child([&] {
    // A mapping of its own, as in another program.
    const Segment theirs = Segment::open(made.address());
    theirs.data()[kBytes - 1] = std::byte{42};
  });
  EXPECT_EQ(made.data()[kBytes - 1], std::byte{42});
}

TEST_P(Segments, KeepTheirMemoryForTheLastHandle) {
  Segment made = Segment::create(GetParam(), kBytes);
  made.data()[5] = std::byte{7};
  const Segment opened = Segment::open(made.address());
  made = Segment();
  EXPECT_FALSE(made);
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened.data()[5], std::byte{7});
}

TEST_P(Segments, DifferFromEachOther) {
  const Segment one = Segment::create(GetParam(), kBytes);
  const Segment other = Segment::create(GetParam(), kBytes);
  EXPECT_NE(one.path(), other.path());
  EXPECT_NE(one.data(), other.data());
}

TEST_P(Segments, ShowALockToEveryHandleButItsOwn) {
  const Segment made = Segment::create(GetParam(), kBytes);
  const Segment opened = Segment::open(made.address());
  EXPECT_FALSE(made.is_locked(3));
  opened.lock(3);
  EXPECT_TRUE(made.is_locked(3));
  EXPECT_FALSE(opened.is_locked(3));
  EXPECT_FALSE(made.is_locked(2));
  EXPECT_FALSE(made.is_locked(4));
}

TEST_P(Segments, GiveAByteToOneHandleOnly) {
  const Segment made = Segment::create(GetParam(), kBytes);
  const Segment opened = Segment::open(made.address());
  made.lock(1);
  EXPECT_THAT(test::message_of<InternalError>([&] { opened.lock(1); }),
              HasSubstr("cannot lock byte 1 of shared memory " + made.path()));
}

TEST_P(Segments, DropALockWithItsHandle) {
  const Segment made = Segment::create(GetParam(), kBytes);
  {
    const Segment opened = Segment::open(made.address());
    opened.lock(0);
    EXPECT_TRUE(made.is_locked(0));
  }
  EXPECT_FALSE(made.is_locked(0));
}

TEST_P(Segments, DropTheLocksOfAProcessThatWasKilled) {
  const Segment made = Segment::create(GetParam(), kBytes);
  // The handle outlives the body: the kernel has to drop its lock.
  auto* theirs = new Segment;  // NOLINT(cppcoreguidelines-owning-memory)
  Child child([&] {
    *theirs = Segment::open(made.address());
    theirs->lock(9);
  });
  EXPECT_TRUE(made.is_locked(9));
  child.kill();
  EXPECT_FALSE(made.is_locked(9));
  delete theirs;  // NOLINT(cppcoreguidelines-owning-memory)
}

TEST_P(Segments, AreNotHeldLockedByAForkedChild) {
  const Segment watcher = Segment::create(GetParam(), kBytes);
  auto owner = std::make_unique<Segment>(Segment::open(watcher.address()));
  owner->lock(2);
  const Child child([] {});
  EXPECT_TRUE(watcher.is_locked(2));
  owner.reset();  // as when this process ends and leaves the child behind
  EXPECT_FALSE(watcher.is_locked(2));
}

TEST_P(Segments, SayHowMuchCannotBeReserved) {
  // Also more than a file's length can say.
  for (const std::size_t bytes : {std::size_t{1} << 50, std::size_t{1} << 63, SIZE_MAX}) {
    EXPECT_THAT(test::message_of<ConfigError>([&] { Segment::create(GetParam(), bytes); }),
                AllOf(HasSubstr("MiB"), HasSubstr("TRIREME_ENGINE=gloo")));
    EXPECT_THAT(own_names(), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Both, Segments,
                         ::testing::Values(Segment::Kind::kAnonymous, Segment::Kind::kNamed),
                         [](const auto& each) {
                           return each.param == Segment::Kind::kNamed ? "named" : "anonymous";
                         });

TEST(Segment, HasANameOnlyWhereItIsAskedFor) {
  const Segment anonymous = Segment::create(Segment::Kind::kAnonymous, kBytes);
  EXPECT_THAT(own_names(), IsEmpty());
  EXPECT_THAT(anonymous.path(), StartsWith(join_message("/proc/", ::getpid(), "/fd/")));

  Segment named = Segment::create(Segment::Kind::kNamed, kBytes);
  EXPECT_THAT(own_names(), ::testing::ElementsAre(named.path()));
  struct stat status = {};
  ASSERT_EQ(::stat(named.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U) << "other users must not read what is trained";
  named.unlink();
  EXPECT_THAT(own_names(), IsEmpty());
  named.data()[0] = std::byte{1};  // the memory stays
}

TEST(Segment, LosesItsNameWithItsMaker) {
  {
    const Segment named = Segment::create(Segment::Kind::kNamed, kBytes);
    const Segment opened = Segment::open(named.address());
  }
  EXPECT_THAT(own_names(), IsEmpty());
}

TEST(Segment, SaysThatDevShmIsTooSmallBeforeItMakesAnything) {
  constexpr std::size_t kPebibyte = std::size_t{1} << 50;
  EXPECT_THAT(
      test::message_of<ConfigError>([] { Segment::create(Segment::Kind::kNamed, kPebibyte); }),
      AllOf(HasSubstr("/dev/shm has "), HasSubstr("the shared-memory engine needs 1.07374e+09 MiB"),
            HasSubstr("--shm-size")));
  EXPECT_THAT(own_names(), IsEmpty());
}

TEST(Segment, SaysThatMemoryIsMissingBeforeItTakesAny) {
  // The kernel used to be asked for it, and killed the process instead of saying no.
  constexpr std::size_t kPebibyte = std::size_t{1} << 50;
  EXPECT_THAT(
      test::message_of<ConfigError>([] { Segment::create(Segment::Kind::kAnonymous, kPebibyte); }),
      AllOf(HasSubstr("this process can get "),
            HasSubstr("MiB of memory, the shared-memory engine needs 1.07374e+09 MiB"),
            HasSubstr("hint: free memory, raise the memory limit of the container")));
}

TEST(Segment, SaysWhichPathCannotBeOpened) {
  EXPECT_THAT(
      test::message_of<ConfigError>([] { Segment::open("/dev/shm/trireme-nobody 1 2 3 4 5"); }),
      AllOf(HasSubstr("cannot open shared memory /dev/shm/trireme-nobody"),
            HasSubstr("No such file"), HasSubstr("hint:")));
}

// What an address starts with, up to its numbers.
std::string with_path(const std::string& path, const std::string& address) {
  return path + address.substr(address.find(' '));
}

TEST(Segment, RefusesWhatIsNoAddress) {
  for (const std::string text :
       {"", "no path", "/etc/passwd 1 2 3 4 5", "/proc/self/fd/3 1 2 3 4 5",
        "/proc//fd/3 1 2 3 4 5", "/proc/1/fd/ 1 2 3 4 5", "/proc/1/fd/3/../4 1 2 3 4 5",
        "/proc/1/root/x 1 2 3 4 5", "/dev/shm/trireme-/../other 1 2 3 4 5",
        "/dev/shm/other 1 2 3 4 5", "/dev/shm/trireme-1 1 2 3 4",
        "/dev/shm/trireme-1 1 2 9223372036854775808 4 5"}) {
    EXPECT_THAT(test::message_of<ConfigError>([&] { Segment::open(text); }),
                HasSubstr("' is no address of shared memory that a rank of Trireme has made"))
        << text;
  }
}

TEST_P(Segments, AreNotTakenForOneAnother) {
  // Whatever another program puts where an address says, and whatever process has the number there
  // in another namespace: it was mapped and written.
  const Segment made = Segment::create(GetParam(), kBytes);
  const Segment other = Segment::create(GetParam(), kBytes);
  EXPECT_THAT(test::message_of<ConfigError>(
                  [&] { Segment::open(with_path(other.path(), made.address())); }),
              HasSubstr("it is another one than rank 0 has made"));
  std::string wrong_number = made.address();
  wrong_number.back() = wrong_number.back() == '1' ? '2' : '1';
  EXPECT_THAT(test::message_of<ConfigError>([&] { Segment::open(wrong_number); }),
              HasSubstr("it is another one than rank 0 has made"));
}

TEST_P(Segments, OfAnotherUserAreNotMapped) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a file to another user takes the rights of root";
  const Segment made = Segment::create(GetParam(), kBytes);
  ASSERT_EQ(::chown(made.path().c_str(), 65534, 65534), 0);
  EXPECT_THAT(test::message_of<ConfigError>([&] { Segment::open(made.address()); }),
              AllOf(HasSubstr("it belongs to user 65534, and this process to user 0"),
                    HasSubstr("all ranks need the same user")));
}

TEST(Segment, OpensNoDescriptorThatIsNoMemory) {
  const Segment made = Segment::create(Segment::Kind::kAnonymous, kBytes);
  const test::TemporaryFolder folder;
  test::write_file(folder / "file", "precious");
  const UniqueFd file(::open((folder / "file").c_str(), O_RDWR | O_CLOEXEC));
  const std::string path = join_message("/proc/", ::getpid(), "/fd/", file.get());
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { Segment::open(with_path(path, made.address())); }),
      HasSubstr("it is no memory; the process of that number is not rank 0"));
}

TEST(Segment, FollowsNoLink) {
  const Segment named = Segment::create(Segment::Kind::kNamed, kBytes);
  const std::string link = join_message("/dev/shm/trireme-", ::getpid(), "-link");
  std::filesystem::create_symlink(named.path(), link);
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { Segment::open(with_path(link, named.address())); }),
      HasSubstr("Too many levels of symbolic links"));
  std::filesystem::remove(link);
}

TEST(Segment, IsNotHeldByAChildForkedWhileItWasOpened) {
  // The child kept a descriptor that was open but not yet noted, and with it the lock that says
  // that its parent lives.
  const Segment watcher = Segment::create(Segment::Kind::kAnonymous, kBytes);
  std::atomic<bool> is_over = false;
  std::atomic<bool> is_held = false;
  std::atomic<int> num_opened = 0;
  std::jthread opener([&] {
    while (!is_over && !is_held) {
      Segment::open(watcher.address()).lock(2);
      // A child closes its copies as the first thing that it does.
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (watcher.is_locked(2)) {
        if (std::chrono::steady_clock::now() > give_up) is_held = true;
        if (is_held) break;
        ::sched_yield();
      }
      ++num_opened;
    }
  });
  for (int round = 0; round < 300 && !is_held; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    for (const int before = num_opened; num_opened < before + 2 && !is_held;) ::sched_yield();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  is_over = true;
  opener.join();
  EXPECT_FALSE(is_held);
}

TEST(Segment, LeavesOldFilesOfOtherUsers) {
  // Root used to remove them.
  if (::geteuid() != 0) GTEST_SKIP() << "giving a file to another user takes the rights of root";
  const std::string theirs = join_message("/dev/shm/trireme-", ::getpid(), "-theirs");
  test::write_file(theirs, "");
  ASSERT_EQ(::chown(theirs.c_str(), 65534, 65534), 0);
  std::filesystem::last_write_time(
      theirs, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  static_cast<void>(Segment::create(Segment::Kind::kNamed, kBytes));
  EXPECT_TRUE(std::filesystem::exists(theirs));
  std::filesystem::remove(theirs);
}

// What a rank 0 that was killed early left goes with the next file that anybody makes.
TEST(Segment, RemovesOldFilesThatNobodyHolds) {
  const Segment held = Segment::create(Segment::Kind::kNamed, kBytes);
  const std::string left = join_message("/dev/shm/trireme-", ::getpid(), "-left");
  const std::string young = join_message("/dev/shm/trireme-", ::getpid(), "-young");
  for (const std::string& path : {left, young}) test::write_file(path, "");
  const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(left, long_ago);
  std::filesystem::last_write_time(held.path(), long_ago);
  static_cast<void>(Segment::create(Segment::Kind::kNamed, kBytes));
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(young));
  EXPECT_TRUE(std::filesystem::exists(held.path()));
  std::filesystem::remove(young);
}

}  // namespace
}  // namespace trireme::shm
