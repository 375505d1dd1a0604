// SPDX-License-Identifier: Apache-2.0
// The engine between threads, with a device for each rank: fake ones, whose streams refuse
// what would be a race.
#include <trireme/comm/collectives.h>

#include <gmock/gmock.h>
#include <tests/fake_device/device.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/torch.h>

#include <array>
#include <latch>
#include <optional>
#include <vector>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using trireme::testing::run_ranks;
using namespace trireme::testing::fake;  // NOLINT(google-build-using-namespace)

class ThreadsOnDevices : public ::testing::Test {
 protected:
  void SetUp() override { trireme::testing::engine_of_ranks = "threads"; }
  void TearDown() override {
    trireme::testing::engine_of_ranks = "shm";
    EXPECT_THAT(take_races(), IsEmpty());
  }
};

c10::Device own_device(const Group& group) { return device(group.rank()); }

TEST_F(ThreadsOnDevices, SendsWhatIsStillComputedAndReceivesIntoWhatIsStillRead) {
  for (const bool receives_first : {false, true}) {
    std::latch first(1);
    run_ranks(2, [&](const Group& group) {
      const bool is_first = receives_first == (group.rank() == 1);
      if (!is_first) first.wait();
      if (group.rank() == 0) {
        const torch::Tensor tensor = torch::full({100}, 2.0F, device(0)) * 3;
        Work work = send_async(tensor, 1, group);
        if (is_first) first.count_down();
        work.wait();
        tensor.zero_();  // behind the copy
      } else {
        const torch::Tensor buffer = torch::ones({100}, device(1));
        const torch::Tensor before = buffer + 1;
        Work work = receive_async(buffer, 0, group);
        if (is_first) first.count_down();
        work.wait();
        EXPECT_TRUE(torch::equal((buffer + before).cpu(), torch::full({100}, 8.0F)));
      }
    });
  }
}

TEST_F(ThreadsOnDevices, FollowsTheStreamsThatAreCurrent) {
  run_ranks(2, [](const Group& group) {
    const OnStream stream(new_stream(group.rank()));
    const torch::Tensor tensor = torch::full({10}, group.rank(), own_device(group));
    const int peer = 1 - group.rank();
    Work sent = send_async(tensor, peer, group);
    const torch::Tensor other = torch::empty({10}, tensor.options());
    receive(other, peer, group);
    sent.wait();
    tensor.add_(other);
    EXPECT_EQ(tensor.sum().item<int>(), 10);
  });
}

TEST_F(ThreadsOnDevices, KeepsMemoryThatNobodyWaitsFor) {
  std::latch is_sent(1);
  run_ranks(2, [&](const Group& group) {
    if (group.rank() == 0) {
      static_cast<void>(send_async(torch::ones({10}, device(0)), 1, group));
      is_sent.count_down();
      barrier(group);
      return;
    }
    is_sent.wait();
    const torch::Tensor tensor = torch::zeros({10}, device(1));
    receive(tensor, 0, group);
    EXPECT_EQ(tensor.sum().item<int>(), 10);
    barrier(group);
  });
}

TEST_F(ThreadsOnDevices, IsCompletedWhenTheDeviceHasCopied) {
  std::optional<Busy> busy(std::in_place);
  std::latch is_sent(1);
  run_ranks(2, [&](const Group& group) {
    const torch::Tensor tensor = torch::zeros({10}, own_device(group));
    if (group.rank() == 0) {
      Work work = send_async(tensor, 1, group);
      is_sent.count_down();
      work.wait();
      return;
    }
    is_sent.wait();
    Work work = receive_async(tensor, 0, group);
    EXPECT_FALSE(work.is_completed());
    busy.reset();
    EXPECT_TRUE(work.is_completed());
    work.wait();
  });
}

TEST_F(ThreadsOnDevices, SendsBetweenProcessorAndDevice) {
  run_ranks(2, [](const Group& group) {
    const int peer = 1 - group.rank();
    const c10::Device where = group.rank() == 0 ? c10::Device(c10::kCPU) : device(1);
    for (const bool is_pinned : {false, true}) {
      torch::Tensor tensor = torch::full({10}, group.rank() + 1, where);
      torch::Tensor other = torch::zeros({10}, tensor.options());
      if (is_pinned && group.rank() == 0) {
        tensor = tensor.pin_memory();
        other = other.pin_memory();
      }
      Work sent = send_async(tensor, peer, group);
      receive(other, peer, group);
      sent.wait();
      EXPECT_EQ(other.sum().item<int>(), 10 * (peer + 1));
    }
  });
}

TEST_F(ThreadsOnDevices, SharesADeviceBetweenRanks) {
  run_ranks(2, [](const Group& group) {
    const OnStream stream(new_stream(1));
    const torch::Tensor tensor = torch::full({10}, group.rank() + 1, device(1));
    all_reduce(tensor, group);
    EXPECT_EQ(tensor.sum().item<int>(), 30);
  });
}

// Rank 0 on the processor, or on a device like the others.
class CollectivesOnDevices : public ThreadsOnDevices, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(WithProcessor, CollectivesOnDevices, ::testing::Bool());

TEST_P(CollectivesOnDevices, GiveTheProcessorsBitsAndOrder) {
  constexpr int kRanks = 3;
  std::array<torch::Tensor, kRanks> inputs;
  for (torch::Tensor& input : inputs) input = torch::randn({kRanks, 50}).mul(1e3);
  const torch::Tensor sum = (inputs[0] + inputs[1]) + inputs[2];
  const torch::Tensor half_sum =
      (inputs[0].to(torch::kHalf).to(torch::kFloat) + inputs[1].to(torch::kHalf).to(torch::kFloat) +
       inputs[2].to(torch::kHalf).to(torch::kFloat))
          .to(torch::kHalf);
  run_ranks(kRanks, [&](const Group& group) {
    const std::int64_t rank = group.rank();
    const c10::Device where = GetParam() && rank == 0 ? c10::Device(c10::kCPU) : own_device(group);
    const torch::Tensor own = inputs[static_cast<std::size_t>(rank)].to(where);
    const auto at_home = [](const torch::Tensor& tensor) { return tensor.cpu(); };

    torch::Tensor reduced = own.clone();
    all_reduce(reduced, group);
    EXPECT_TRUE(torch::equal(at_home(reduced), sum));
    reduced.copy_(own);
    all_reduce(reduced, group, ReduceOp::kAverage);
    EXPECT_TRUE(torch::equal(at_home(reduced), sum / kRanks));
    torch::Tensor half = own.to(torch::kHalf);
    all_reduce(half, group);
    EXPECT_TRUE(torch::equal(at_home(half), half_sum));

    const torch::Tensor part = torch::empty({50}, own.options());
    reduce_scatter(part, own, group);
    EXPECT_TRUE(torch::equal(at_home(part), sum[rank]));
    const torch::Tensor all = torch::empty({kRanks * kRanks, 50}, own.options());
    all_gather(all, own, group);
    EXPECT_TRUE(torch::equal(at_home(all), torch::cat({inputs[0], inputs[1], inputs[2]})));
    const torch::Tensor exchanged = torch::empty({kRanks, 50}, own.options());
    all_to_all(exchanged, own, group);
    EXPECT_TRUE(torch::equal(at_home(exchanged),
                             torch::stack({inputs[0][rank], inputs[1][rank], inputs[2][rank]})));
    const torch::Tensor sent = own.clone();
    broadcast(sent, 1, group);
    EXPECT_TRUE(torch::equal(at_home(sent), inputs[1]));
    reduced.copy_(own);
    reduce(reduced, 2, group);
    if (rank == 2) {
      EXPECT_TRUE(torch::equal(at_home(reduced), sum));
    }
    barrier(group);
  });
}

// Autograd's own threads send, as a pipeline whose backward reaches a stage's input would.
TEST_F(ThreadsOnDevices, SendsFromAutogradThreads) {
  run_ranks(2, [](const Group& group) {
    const c10::Device where = own_device(group);
    if (group.rank() == 0) {
      const torch::Tensor weight = torch::full({10}, 3.0F, where).requires_grad_();
      const torch::Tensor product = weight * 2;
      product.register_hook([&](const torch::Tensor& gradient) { send(gradient, 1, group); });
      product.pow(2).sum().backward();
      EXPECT_EQ(weight.grad().sum().item<float>(), 240);
    } else {
      const torch::Tensor gradient = torch::zeros({10}, where);
      receive(gradient, 0, group);
      EXPECT_EQ(gradient.sum().item<float>(), 120);
    }
  });
}

}  // namespace
}  // namespace trireme::comm
