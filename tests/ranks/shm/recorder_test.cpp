// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <tests/ranks/shm/thread_ranks.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using test::run_ranks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> descriptions(const std::vector<RecordedOperation>& records) {
  std::vector<std::string> all;
  for (const RecordedOperation& record : records) all.push_back(describe(record));
  return all;
}

TEST(FlightRecorder, TellsEveryRankWhatEachHasDone) {
  run_ranks(3, [](Communicator& group) {
    std::array<double, 4> data = {};
    const std::array<std::size_t, 3> counts = {1, 2, 1};
    std::array<double, 2> piece = {};
    group.all_reduce(data.data(), data.data(), 4, DataType::kFloat64, {ReduceOp::kMaximum},
                     "layer1.weight");
    group.broadcast(data.data(), 32, 2);
    group.reduce_scatter(data.data(), piece.data(), counts, DataType::kFloat64, {}, "bucket 3");
    group.reduce(data.data(), data.data(), 3, DataType::kInt64, {ReduceOp::kXor}, 1);
    group.barrier("epoch end");
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<RecordedOperation> records = group.member().recorded(rank);
      ASSERT_GE(records.size(), 5U);
      records.resize(5);  // the others may be in the last barrier by now
      EXPECT_THAT(descriptions(records),
                  ElementsAre("all-reduce (maximum) of 4 float64, number 1 ('layer1.weight')",
                              "broadcast with root 2 of 32 uint8, number 2",
                              "reduce-scatter (sum) of 4 float64, number 3 ('bucket 3')",
                              "reduce (xor) with root 1 of 3 int64, number 4",
                              "barrier, number 5 ('epoch end')"));
      for (std::size_t i = 0; i + 1 < records.size(); ++i) {
        EXPECT_EQ(records[i].number, i + 1);
        EXPECT_GT(records[i].started.count(), 0);
        EXPECT_GE(records[i].finished, records[i].started);
        EXPECT_GE(records[i + 1].started, records[i].finished);
      }
    }
    EXPECT_GT(group.member().recorded(group.rank()).back().finished.count(), 0);
    group.barrier();
  });
}

TEST(FlightRecorder, KeepsTheLastOperationsOnly) {
  run_ranks(2, [](Communicator& group) {
    for (int i = 0; i < 300; ++i) group.barrier(std::to_string(i));
    const std::vector<RecordedOperation> records = group.member().recorded(group.rank());
    ASSERT_EQ(records.size(), RankBlock::kRecords);
    EXPECT_EQ(records.front().number, 300 - RankBlock::kRecords + 1);
    EXPECT_EQ(records.front().label, std::to_string(300 - RankBlock::kRecords));
    EXPECT_EQ(records.back().number, 300U);
    EXPECT_EQ(records.back().label, "299");
    group.barrier();
  });
}

TEST(FlightRecorder, CutsLongLabelsAndForgetsOldOnes) {
  run_ranks(1, [](Communicator& group) {
    const std::string most(Record::kLabelWords * sizeof(std::uint64_t), 'x');
    group.barrier(most + "and more");
    EXPECT_EQ(group.member().recorded(0).back().label, most);
    // The same places in memory with shorter labels, and none.
    for (const std::string& label :
         {std::string("sixteen letters!"), std::string("short"), std::string()}) {
      for (std::size_t i = 0; i < RankBlock::kRecords; ++i) group.barrier(label);
      EXPECT_EQ(group.member().recorded(0).back().label, label);
    }
  });
}

TEST(FlightRecorder, ShowsAnOperationThatIsRunning) {
  std::atomic<bool> has_looked = false;
  run_ranks(2, [&](Communicator& group) {
    if (group.rank() == 0) {
      group.barrier("waits for rank 1");
      return;
    }
    std::vector<RecordedOperation> records;
    while (records.empty()) records = group.member().recorded(0);
    EXPECT_EQ(records.back().label, "waits for rank 1");
    EXPECT_EQ(records.back().finished.count(), 0);
    EXPECT_THAT(group.member().last_operations(),
                AllOf(HasSubstr("  rank 0: is in barrier, number 1 ('waits for rank 1')"),
                      HasSubstr("  rank 1: nothing yet")));
    has_looked = true;
    group.barrier();
  });
  EXPECT_TRUE(has_looked);
}

TEST(FlightRecorder, MayBeReadWhileItIsWritten) {
  std::atomic<bool> is_done = false;
  run_ranks(2, [&](Communicator& group) {
    std::jthread reader;
    if (group.rank() == 0) {
      reader = std::jthread([&] {
        do {
          for (const RecordedOperation& record : group.member().recorded(1)) {
            // The label belongs to the operation that it is found with.
            EXPECT_EQ(record.label, std::to_string(record.operation.sequence));
          }
        } while (!is_done);
      });
    }
    for (int i = 1; i <= 3000; ++i) group.barrier(std::to_string(i));
    is_done = true;
  });
}

TEST(FlightRecorder, DoesNotTakeTheEndOfAnOldOperationForThatOfALaterOne) {
  run_ranks(2, [](Communicator& group) {
    PointToPoint& mail = group.point_to_point();
    std::array<std::byte, 1> data = {};
    std::shared_ptr<Transfer> old;
    std::shared_ptr<Transfer> later;
    if (group.rank() == 0) old = mail.receive(data.data(), 1, 1, 0);
    for (std::size_t i = 1; i < RankBlock::kRecords; ++i) group.barrier();
    if (group.rank() == 0) {
      later = mail.receive(data.data(), 1, 1, 1);  // in the place of the first
      group.barrier();
      mail.wait(*old);
      for (const RecordedOperation& record : group.member().recorded(0)) {
        if (record.operation.kind == Kind::kReceive) {
          EXPECT_EQ(record.finished.count(), 0);
        }
      }
      group.barrier();
      mail.wait(*later);
    } else {
      group.barrier();
      mail.wait(*mail.send(data.data(), 1, 0, 0));
      group.barrier();
      mail.wait(*mail.send(data.data(), 1, 0, 1));
    }
  });
}

}  // namespace
}  // namespace trireme::shm
