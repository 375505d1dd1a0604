// SPDX-License-Identifier: Apache-2.0
// What ranks learn that cannot make a group: of memory that is not theirs, and of ranks that do not
// come.
#include <trireme/base/error.h>
#include <trireme/base/machine.h>

#include <gmock/gmock.h>
#include <tests/ranks/shm/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::test::message_of;

using Thrown = std::vector<std::exception_ptr>;

// Another user of the machine was faster than rank 0.
class PoisonedRendezvousStore : public test::ThreadRendezvousStore {
 public:
  explicit PoisonedRendezvousStore(std::string address) : address_(std::move(address)) {}
  std::string get(const std::string& key) override {
    const std::string value = ThreadRendezvousStore::get(key);
    return key == "memory" || key == "file" ? address_ : value;
  }

 private:
  std::string address_;
};

TEST(Connecting, MapsNoMemoryThatAnotherUserOffers) {
  // A rank used to map it, and to write there.
  if (::geteuid() != 0) GTEST_SKIP() << "giving a file to another user takes the rights of root";
  const Segment his = Segment::create(Segment::Kind::kNamed, std::size_t{1} << 22);
  ASSERT_EQ(::chown(his.path().c_str(), 65534, 65534), 0);
  PoisonedRendezvousStore store(his.address());
  const Thrown thrown = test::run_threads(
      2, [&](int rank) { Communicator::connect(rank, 2, store, test::options_with(true)); });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(message_of<ConfigError>([&] {
                  if (exception) std::rethrow_exception(exception);
                }),
                AllOf(HasSubstr("the ranks cannot share memory: cannot open shared memory "),
                      HasSubstr("it belongs to user 65534, and this process to user 0")));
  }
  EXPECT_EQ(his.data()[0], std::byte{0});
}

TEST(Connecting, NamesTheRankThatDoesNotCome) {
  // The message named a key of the store and a network interface.
  for (const bool comes_to_the_first_question : {false, true}) {
    test::ThreadRendezvousStore store(milliseconds(2000));  // within which the others have come
    Options options = test::options_with(true, "data");
    options.yields = {};
    options.timeout = milliseconds(2000);
    options.look_at = [](int rank) {
      return join_message("is stopped (process ", 100 + rank, ")");
    };
    const Thrown thrown = test::run_threads(3, [&](int rank) {
      if (rank != 2) {
        Communicator::connect(rank, 3, store, options);
      } else if (comes_to_the_first_question) {
        Rendezvous(store, rank, 3, options).answer("cores", "1 0");
      }
    });
    // Rank 1 waits for rank 0, which waits for rank 2.
    for (const std::size_t rank : {0U, 1U}) {
      try {
        ASSERT_TRUE(thrown[rank]);
        std::rethrow_exception(thrown[rank]);
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(),
                    HasSubstr("rank 2 did not come within the timeout of 2 s to the rendezvous of "
                              "group 'data', which shares memory; "
                              "rank 2 is stopped (process 102)"));
        EXPECT_EQ(error.failure().peer, 2);
      }
    }
  }
}

// A temporary file of a name that could be guessed was opened, wherever a link led.
TEST(Connecting, KeepsItsMeasurementsWithoutFollowingALinkOfAnyName) {
  constexpr int kRanks = 13;  // what another test has measured is not measured again
  const trireme::test::TemporaryFolder folder;
  Options options = test::options_with(true);
  options.cache_folder = folder / "cache";
  options.longest_calibration = std::chrono::hours(1);  // nothing is kept if measuring ends early
  std::filesystem::create_directory(options.cache_folder);
  const auto name = join_message("shared-memory-1-", host_name(), "-", kRanks, "-ranks-",
                                 available_cores(), "-cores");
  const auto guessed = join_message(name, ".", ::getpid());
  std::filesystem::create_symlink(folder / "elsewhere", options.cache_folder / guessed);
  test::run_ranks(kRanks, [](Communicator& /*group*/) {}, options);
  EXPECT_TRUE(std::filesystem::is_regular_file(options.cache_folder / name));
  EXPECT_FALSE(std::filesystem::exists(folder / "elsewhere"));
}

}  // namespace
}  // namespace trireme::shm
