// SPDX-License-Identifier: Apache-2.0
// Memories that are in host memory for a while, on a device whose streams run in any order that
// events allow, through steps as an executor makes them.
#include <trireme/parallel/pipeline/offload/host_copies.h>

#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/unit/parallel/pipeline/queued_device.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace trireme::pipeline {
namespace {

using schedule::Action;
using schedule::ActionKind;
using test::QueuedDevice;

constexpr std::int64_t kBytes = 48;
constexpr int kMicroBatches = 6;
constexpr int kSteps = 3;
constexpr std::uint64_t kOrders = 200;

// What a caller leaves out, for the orders in which it shows.
enum class LeftOut { kNothing, kWaitBeforeFreeing, kWaitBeforeUse };

// Steps of a schedule in which every forward writes two memories, and its backward reads them.
class Steps {
 public:
  explicit Steps(LeftOut left_out) : left_out_(left_out) {
    test::register_queued_device();
    device_.reset();
    const std::vector<int> stages = {0};
    const schedule::Schedule plan =
        with_offloading(schedule::generate("gpipe", 1, kMicroBatches), stages);
    for (int step = 0; step < kSteps; ++step) {
      for (const Action& action : plan.ranks.front()) perform(action, step);
      num_bytes_.push_back(copies_.num_bytes());
    }
  }

  // Whether each backward finds what its forward wrote.
  bool are_right_in_order(std::uint64_t seed) {
    is_right_ = true;
    device_.run(seed);
    return is_right_;
  }

  const std::vector<std::int64_t>& num_bytes() const { return num_bytes_; }

 private:
  struct Kept {
    std::vector<c10::Storage> memories;
    HostCopies::Stored stored;
  };

  static std::vector<c10::Storage> allocate() {
    std::vector<c10::Storage> memories;
    for (int i = 0; i < 2; ++i) {
      memories.push_back(
          at::empty({kBytes}, at::TensorOptions(at::kByte).device(QueuedDevice::device()))
              .storage());
    }
    return memories;
  }

  void write(const std::vector<c10::Storage>& memories, int value) {
    for (const c10::Storage& memory : memories) {
      device_.give([to = static_cast<std::uint8_t*>(memory.mutable_data()), value] {
        std::fill_n(to, kBytes, static_cast<std::uint8_t>(value));
      });
    }
  }

  void expect(const std::vector<c10::Storage>& memories, int value) {
    for (const c10::Storage& memory : memories) {
      device_.give([this, from = static_cast<const std::uint8_t*>(memory.data()), value] {
        const std::span<const std::uint8_t> bytes(from, kBytes);
        is_right_ = is_right_ && std::ranges::count(bytes, value) == kBytes;
      });
    }
  }

  void perform(const Action& action, int step) {
    Kept& kept = kept_[action.micro_batch];
    const int value = step * kMicroBatches + action.micro_batch + 1;
    write(allocate(), 255);  // what a computation needs for itself
    switch (action.kind) {
      case ActionKind::kForward:
        kept.memories = allocate();
        write(kept.memories, value);
        kept.stored = copies_.store(kept.memories);
        break;
      case ActionKind::kOffload:
        if (left_out_ != LeftOut::kWaitBeforeFreeing) kept.stored.wait();
        kept.memories.clear();
        break;
      case ActionKind::kLoad:
        kept.memories = copies_.load(kept.stored);
        break;
      case ActionKind::kBackward:
        if (left_out_ != LeftOut::kWaitBeforeUse) kept.stored.wait();
        expect(kept.memories, value);
        kept = {};
        break;
      default:
        break;
    }
  }

  LeftOut left_out_;
  QueuedDevice& device_ = QueuedDevice::get();
  HostCopies copies_{QueuedDevice::device()};
  std::map<int, Kept> kept_;
  std::vector<std::int64_t> num_bytes_;
  bool is_right_ = true;
};

TEST(HostCopies, AreRightInWhateverOrderADeviceRunsItsStreams) {
  Steps steps(LeftOut::kNothing);
  for (std::uint64_t order = 0; order < kOrders; ++order) {
    ASSERT_TRUE(steps.are_right_in_order(order)) << order;
  }
}

// Blocks of the first step are those of all others, and of another micro-batch once it is loaded.
TEST(HostCopies, UseTheirBlocksAgain) {
  const Steps steps(LeftOut::kNothing);
  EXPECT_GE(steps.num_bytes().front(), 2 * kBytes);
  EXPECT_LE(steps.num_bytes().front(), 2 * kBytes * kMicroBatches);
  EXPECT_THAT(steps.num_bytes(), ::testing::Each(steps.num_bytes().front()));
}

// That the orders find what is wrong.
TEST(HostCopies, NeedTheWaitsOfTheirCaller) {
  for (const LeftOut left_out : {LeftOut::kWaitBeforeFreeing, LeftOut::kWaitBeforeUse}) {
    Steps steps(left_out);
    bool are_right = true;
    for (std::uint64_t order = 0; order < kOrders; ++order) {
      are_right = steps.are_right_in_order(order) && are_right;
    }
    EXPECT_FALSE(are_right);
  }
}

}  // namespace
}  // namespace trireme::pipeline
