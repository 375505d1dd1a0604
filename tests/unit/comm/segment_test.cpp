// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/shm/segment.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
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
  const Segment opened = Segment::open(made.path());
  EXPECT_EQ(opened.size(), kBytes);
  EXPECT_EQ(opened.data(), made.data()) << "threads of a process share one mapping";
  const Child child([&] {
    // A mapping of its own, as in another program.
    const Segment theirs = Segment::open(made.path());
    theirs.data()[kBytes - 1] = std::byte{42};
  });
  EXPECT_EQ(made.data()[kBytes - 1], std::byte{42});
}

TEST_P(Segments, KeepTheirMemoryForTheLastHandle) {
  Segment made = Segment::create(GetParam(), kBytes);
  made.data()[5] = std::byte{7};
  const Segment opened = Segment::open(made.path());
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
  const Segment opened = Segment::open(made.path());
  EXPECT_FALSE(made.is_locked(3));
  opened.lock(3);
  EXPECT_TRUE(made.is_locked(3));
  EXPECT_FALSE(opened.is_locked(3));
  EXPECT_FALSE(made.is_locked(2));
  EXPECT_FALSE(made.is_locked(4));
}

TEST_P(Segments, GiveAByteToOneHandleOnly) {
  const Segment made = Segment::create(GetParam(), kBytes);
  const Segment opened = Segment::open(made.path());
  made.lock(1);
  EXPECT_THAT(test::message_of<InternalError>([&] { opened.lock(1); }),
              HasSubstr("cannot lock byte 1 of shared memory " + made.path()));
}

TEST_P(Segments, DropALockWithItsHandle) {
  const Segment made = Segment::create(GetParam(), kBytes);
  {
    const Segment opened = Segment::open(made.path());
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
    *theirs = Segment::open(made.path());
    theirs->lock(9);
  });
  EXPECT_TRUE(made.is_locked(9));
  child.kill();
  EXPECT_FALSE(made.is_locked(9));
  delete theirs;  // NOLINT(cppcoreguidelines-owning-memory)
}

TEST_P(Segments, AreNotHeldLockedByAForkedChild) {
  const Segment watcher = Segment::create(GetParam(), kBytes);
  auto owner = std::make_unique<Segment>(Segment::open(watcher.path()));
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
    const Segment opened = Segment::open(named.path());
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
  EXPECT_THAT(test::message_of<ConfigError>([] { Segment::open("/dev/shm/trireme-nobody"); }),
              AllOf(HasSubstr("cannot open shared memory /dev/shm/trireme-nobody"),
                    HasSubstr("No such file"), HasSubstr("hint:")));
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
