// SPDX-License-Identifier: Apache-2.0
// Where /dev/shm is as small as containers make it, and where memory without a name cannot be
// opened by the other ranks. A child process mounts a /dev/shm of its own, which takes the right to
// mount.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <tests/ranks/shm/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>

namespace trireme::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The first memory offered, a descriptor of rank 0, cannot be opened, as in containers with a
// process namespace each.
class RendezvousByName : public test::ThreadRendezvousStore {
 public:
  std::string get(const std::string& key) override {
    const std::string value = ThreadRendezvousStore::get(key);
    return key == "memory" ? "/proc/1/fd/999999 0 0 0 0 0" : value;
  }
};

// What `action` threw, and what then lies in /dev/shm, as a text that starts with `ok` if nothing
// and nothing.
std::string outcome_of(const std::function<void()>& action) {
  std::string outcome = "ok";
  try {
    action();
  } catch (const ConfigError& error) {
    outcome = error.what();
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    outcome = join_message("left behind: ", entry.path(), "; ", outcome);
  }
  return outcome;
}

class DevShm : public ::testing::Test {
 protected:
  static constexpr int kMayNotMount = 77;

  // The outcome in a child whose /dev/shm has so many bytes.
  static std::string with_dev_shm(const std::string& bytes, const std::function<void()>& action) {
    const trireme::test::TemporaryFolder folder;
    test::options_with(true);  // its folder is made here, where it is removed, too
    const pid_t child = ::fork();
    if (child == 0) {
      if (::unshare(CLONE_NEWNS) != 0 ||
          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("tmpfs", "/dev/shm", "tmpfs", 0, ("size=" + bytes).c_str()) != 0) {
        ::_exit(kMayNotMount);
      }
      trireme::test::write_file(folder / "outcome", outcome_of(action));
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kMayNotMount) return "may not mount";
    EXPECT_EQ(status, 0);
    return trireme::test::read_file(folder / "outcome");
  }

  void SetUp() override {
    if (with_dev_shm("4k", [] {}) == "may not mount") {
      GTEST_SKIP() << "mounting a small /dev/shm takes the rights of root";
    }
  }
};

template <typename AnyRendezvousStore>
void connect_and_add() {
  AnyRendezvousStore store;
  test::rethrow_first(test::run_threads(2, [&](int rank) {
    const auto group = Communicator::connect(rank, 2, store, test::options_with(true));
    std::int32_t sum = rank + 1;
    group->all_reduce(&sum, &sum, 1, DataType::kInt32);
    if (sum != 3) throw std::runtime_error("the sum is wrong");
  }));
}

TEST_F(DevShm, ThatIsTooSmallIsAnErrorThatSaysWhatToDo) {
  EXPECT_THAT(with_dev_shm("1m", [] { Segment::create(Segment::Kind::kNamed, 3 << 20); }),
              AllOf(StartsWith("/dev/shm has 1 MiB free, the shared-memory engine needs 3 MiB"),
                    HasSubstr("hint: make it larger (containers: --shm-size or --ipc=host), or "
                              "choose TRIREME_ENGINE=gloo")));
}

TEST_F(DevShm, ThatIsTooSmallDoesNotMatterToMemoryWithoutAName) {
  EXPECT_EQ(with_dev_shm("4k", connect_and_add<test::ThreadRendezvousStore>), "ok");
}

TEST_F(DevShm, ThatIsLargeEnoughServesWhereDescriptorsCannotBeOpened) {
  EXPECT_EQ(with_dev_shm("64m", connect_and_add<RendezvousByName>), "ok");
}

TEST_F(DevShm, ThatIsTooSmallWhereDescriptorsCannotBeOpenedIsAnErrorWithBothReasons) {
  EXPECT_THAT(with_dev_shm("1m", connect_and_add<RendezvousByName>),
              AllOf(StartsWith("the ranks cannot share memory: cannot open shared memory "
                               "/proc/1/fd/999999: No such file or directory"),
                    HasSubstr("; then by name: /dev/shm has 1 MiB free, the shared-memory engine "
                              "needs "),
                    HasSubstr("--shm-size"), HasSubstr("TRIREME_ENGINE=gloo")));
}

}  // namespace
}  // namespace trireme::shm
