// SPDX-License-Identifier: Apache-2.0
// What is said about a rank that others have waited for for long, and that is no error.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/shm/thread_ranks.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The lines that the ranks of a group report. Thread-safety: safe.
class Reports {
 public:
  Options options(std::chrono::milliseconds report_after) {
    Options options = test::options_with(true);
    options.report_after = report_after;
    options.report = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
      changed_.notify_all();
    };
    return options;
  }
  /// Returns when there are so many lines.
  void await(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, std::chrono::system_clock::now() + test::kDeadline,
                        [&] { return lines_.size() >= count; });
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;  // guards lines_
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

TEST(WaitingForLong, IsReportedOnceByEachWithWhatAllDidLast) {
  Reports reports;
  test::run_ranks(
      4,
      [&](Communicator& group) {
        group.barrier("begin of the step");
        // Rank 1 computes; while rank 3 begins to wait, the others might report again.
        if (group.rank() == 3) reports.await(2);
        if (group.rank() == 1) reports.await(3);
        std::array<float, 4> data = {};
        group.all_reduce(data.data(), data.data(), 4, DataType::kFloat32, {}, "gradients");
      },
      reports.options(std::chrono::milliseconds(50)));
  const std::vector<std::string> lines = reports.lines();
  EXPECT_THAT(lines, SizeIs(3));
  for (const int rank : {0, 2, 3}) {
    const std::string in_gradients = join_message(
        "  rank ", rank, ": is in all-reduce (sum) of 4 float32, number 2 ('gradients')");
    EXPECT_THAT(
        lines,
        Contains(AllOf(StartsWith(join_message("rank ", rank, " has waited 0.")),
                       HasSubstr(" s for rank 1; the last operations:\n"), HasSubstr(in_gradients),
                       HasSubstr("  rank 1: has done barrier, number 1 ('begin of the step')"))));
  }
}

TEST(WaitingForLong, IsReportedOfMessages) {
  Reports reports;
  test::run_ranks(
      2,
      [&](Communicator& group) {
        PointToPoint& mail = group.point_to_point();
        char byte = 0;
        if (group.rank() == 1) {
          reports.await(1);
          mail.wait(*mail.send(&byte, 1, 0, 3));
        } else {
          mail.wait(*mail.receive(&byte, 1, 1, 3, "activations"));
        }
      },
      reports.options(std::chrono::milliseconds(50)));
  EXPECT_THAT(
      reports.lines(),
      ElementsAre(
          AllOf(StartsWith("rank 0 has waited 0."), HasSubstr(" s for rank 1;"),
                HasSubstr("rank 0: is in receive from rank 1 of 1 uint8, number 1 ('activations')"),
                HasSubstr("rank 1: nothing yet"))));
}

TEST(WaitingForLong, IsNotReportedBeforeItsTime) {
  Reports reports;
  test::run_ranks(
      2, [](Communicator& group) { group.barrier(); }, reports.options(std::chrono::hours(1)));
  EXPECT_THAT(reports.lines(), IsEmpty());
}

}  // namespace
}  // namespace trireme::shm
