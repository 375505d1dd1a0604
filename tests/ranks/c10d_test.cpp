// SPDX-License-Identifier: Apache-2.0
// What code that speaks c10d finds: LibTorch's ProcessGroup and functional collectives over the
// shared-memory engine, and work that nobody waits for.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>

#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/csrc/distributed/c10d/Functional.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <thread>

namespace trireme::comm {
namespace {

using trireme::testing::run_ranks;

c10::intrusive_ptr<c10d::ProcessGroup> process_group_of(const Group& group) {
  using c10d::ProcessGroup;
  auto result = c10::make_intrusive<ProcessGroup>(c10::make_intrusive<c10d::HashStore>(),
                                                  group.rank(), group.size());
  result->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::CUSTOM, group.backend());
  result->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
  return result;
}

TEST(FunctionalCollectives, RunOverSharedMemory) {
  run_ranks(3, [](const Group& group) {
    // The registry is the process's, and the ranks are its threads.
    const std::string name = "rank " + std::to_string(group.rank());
    const auto process_group = process_group_of(group);  // the registry does not keep it
    c10d::register_process_group(name, process_group);
    const at::Tensor own = at::arange(6).add(group.rank());
    const at::Tensor sum = c10d::wait_tensor(c10d::all_reduce(own, "sum", name));
    EXPECT_TRUE(at::equal(sum, at::arange(6).mul(3).add(3)));
    const at::Tensor all = c10d::wait_tensor(c10d::all_gather_into_tensor(own, 3, name));
    EXPECT_TRUE(
        at::equal(all, at::cat({at::arange(6), at::arange(6).add(1), at::arange(6).add(2)})));
    const at::Tensor part = c10d::wait_tensor(c10d::reduce_scatter_tensor(own, "sum", 3, name));
    EXPECT_TRUE(at::equal(part, sum.slice(0, 2 * group.rank(), 2 * group.rank() + 2)));
    c10d::unregister_process_group(name);
  });
}

TEST(ReduceScatterOfLists, RefusesPiecesOfSeveralDtypes) {
  run_ranks(2, [](const Group& group) {
    std::vector<at::Tensor> outputs = {at::zeros({4})};
    std::vector<std::vector<at::Tensor>> lists = {
        {at::zeros({4}), at::zeros({4}, group.rank() == 0 ? at::kByte : at::kLong)}};
    if (group.rank() == 1) std::swap(lists[0][0], lists[0][1]);
    EXPECT_THROW(group.backend()->reduce_scatter(outputs, lists), UsageError);
  });
}

TEST(BlockingCalls, ReturnNoWorkOutsideOfCoalescing) {
  run_ranks(2, [](const Group& group) {
    const auto backend = group.backend();
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    // The second tensor is strided, so that its sum is copied back.
    for (const at::Tensor& tensor :
         {at::full({3}, group.rank() + 1), at::full({3, 2}, group.rank() + 1).select(1, 0)}) {
      std::vector<at::Tensor> tensors = {tensor};
      EXPECT_EQ(backend->allreduce(tensors, options), nullptr);
      EXPECT_TRUE(at::equal(tensor, at::full({3}, 3)));
    }
    c10d::AllreduceCoalescedOptions together;
    together.asyncOp = false;
    std::vector<at::Tensor> several = {at::full({2}, group.rank()), at::full({4}, group.rank())};
    EXPECT_EQ(backend->allreduce_coalesced(several, together), nullptr);
    EXPECT_TRUE(at::equal(several[1], at::full({4}, 1)));
    EXPECT_EQ(backend->getSequenceNumberForGroup(), 4);

    backend->startCoalescing();
    std::vector<at::Tensor> tensors = {at::full({3}, group.rank() + 1)};
    EXPECT_NE(backend->allreduce(tensors, options), nullptr);
    backend->endCoalescing()->wait();
    EXPECT_TRUE(at::equal(tensors[0], at::full({3}, 3)));
  });
}

TEST(BlockingCalls, ThrowTheFailureOfTheOperation) {
  run_ranks(2, [](Group group) {
    const auto backend = group.backend();
    backend->setTimeout(std::chrono::milliseconds(50));
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    std::vector<at::Tensor> tensors = {at::full({3}, group.rank())};
    if (group.rank() == 0) EXPECT_THROW(backend->allreduce(tensors, options), CommError);
  });
}

// Short and long: the short one is left to its waiter, unless somebody asks without waiting.
class UnwaitedWork : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Elements, UnwaitedWork, ::testing::Values(1, 1 << 20));

TEST_P(UnwaitedWork, EndsForWhoPolls) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor tensor = at::full({GetParam()}, group.rank() + 1);
    const Work work = all_reduce_async(tensor, group);
    while (!work.is_completed()) std::this_thread::yield();
    EXPECT_TRUE(at::equal(tensor, at::full({GetParam()}, 3)));
    std::vector<at::Tensor> tensors = {tensor};
    const auto c10d_work = group.backend()->allreduce(tensors);
    while (!c10d_work->isCompleted()) std::this_thread::yield();
    EXPECT_TRUE(at::equal(tensor, at::full({GetParam()}, 6)));
  });
}

TEST_P(UnwaitedWork, CompletesItsFuture) {
  run_ranks(2, [](const Group& group) {
    std::vector<at::Tensor> tensors = {at::full({GetParam()}, group.rank() + 1)};
    group.backend()->allreduce(tensors)->getFuture()->wait();
    EXPECT_TRUE(at::equal(tensors[0], at::full({GetParam()}, 3)));
  });
}

// The PowerSGD hook of Python's DDP does so.
TEST_P(UnwaitedWork, LetsCallbacksWaitForOtherOperations) {
  run_ranks(2, [](const Group& group) {
    std::vector<at::Tensor> first = {at::full({GetParam()}, group.rank() + 1)};
    std::vector<at::Tensor> second = {at::full({GetParam()}, group.rank() + 2)};
    const auto chained = group.backend()->allreduce(first)->getFuture()->then(
        [&](c10::ivalue::Future&) {
          group.backend()->allreduce(second)->getFuture()->wait();
          return c10::IValue(true);
        },
        c10::BoolType::get());
    chained->wait();
    EXPECT_FALSE(chained->hasError());
    EXPECT_TRUE(at::equal(second[0], at::full({GetParam()}, 5)));
  });
}

TEST_P(UnwaitedWork, EndsBeforeTheNextOperation) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor first = at::full({GetParam()}, group.rank() + 1);
    const at::Tensor second = at::full({1}, group.rank());
    const Work work = all_reduce_async(first, group);
    all_reduce(second, group);
    EXPECT_TRUE(at::equal(first, at::full({GetParam()}, 3)));
    EXPECT_TRUE(at::equal(second, at::full({1}, 1)));
  });
}

TEST_P(UnwaitedWork, EndsWithTheGroup) {
  run_ranks(2, [](Group group) {
    const at::Tensor tensor = at::full({GetParam()}, group.rank() + 1);
    static_cast<void>(all_reduce_async(tensor, group));
    group = Group::self();
    EXPECT_TRUE(at::equal(tensor, at::full({GetParam()}, 3)));
  });
}

TEST(BackgroundWork, KeepsItsOrderAmongShortAndLongOperations) {
  run_ranks(3, [](const Group& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (std::int64_t i = 0; i < 40; ++i) {
      tensors.push_back(at::full({i % 5 == 4 ? 100'000 : i + 1}, i + group.rank()));
      works.push_back(all_reduce_async(tensors.back(), group));
      if (i % 7 == 6) works[static_cast<std::size_t>(i)].wait();
    }
    for (Work& work : works) work.wait();
    for (std::int64_t i = 0; i < 40; ++i) {
      const at::Tensor& tensor = tensors[static_cast<std::size_t>(i)];
      EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, 3 * i + 3)));
    }
  });
}

}  // namespace
}  // namespace trireme::comm
