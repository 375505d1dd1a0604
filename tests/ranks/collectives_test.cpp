// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/collectives.h>

#include <trireme/base/error.h>
#include <trireme/comm/check_values.h>
#include <trireme/comm/differentiable.h>

#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <tests/ranks/store_engine.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <atomic>
#include <functional>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trireme::testing::message_of;
using trireme::testing::run_ranks;
using trireme::testing::run_ranks_catching;

// Every case runs over every engine that serves one host, and over the one that shows how to write
// another.
class EveryEngine : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    trireme::testing::engine_of_test = trireme::testing::store_engine();
    trireme::testing::engine_of_ranks = GetParam();
  }
  void TearDown() override { trireme::testing::engine_of_ranks = "shm"; }
};
class AllReduce : public EveryEngine {};
class Broadcast : public EveryEngine {};
class AllGather : public EveryEngine {};
class Gather : public EveryEngine {};
class Scatter : public EveryEngine {};
class ReduceScatter : public EveryEngine {};
class AllToAll : public EveryEngine {};
class PointToPoint : public EveryEngine {};
class AllGatherText : public EveryEngine {};
class Subgroups : public EveryEngine {};
class CommErrors : public EveryEngine {};
const auto kEngines = ::testing::Values("shm", "gloo", "threads", "store");
INSTANTIATE_TEST_SUITE_P(Over, AllReduce, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, Broadcast, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, AllGather, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, Gather, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, Scatter, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, ReduceScatter, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, AllToAll, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, PointToPoint, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, AllGatherText, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, Subgroups, kEngines);
INSTANTIATE_TEST_SUITE_P(Over, CommErrors, kEngines);

TEST_P(AllReduce, SumsOverRanksForEveryCommonDtype) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kInt, at::kLong, at::kByte}) {
    run_ranks(3, [&](const Group& group) {
      const at::Tensor tensor = at::full({5, 3}, group.rank() + 1, dtype);
      all_reduce(tensor, group);
      EXPECT_TRUE(at::equal(tensor, at::full({5, 3}, 6, dtype))) << dtype;
    });
  }
}

TEST_P(AllReduce, TakesProductMinimumAndMaximum) {
  run_ranks(3, [](const Group& group) {
    const auto reduced = [&](ReduceOp op) {
      const at::Tensor tensor = at::full({2}, group.rank() + 2, at::kFloat);
      all_reduce(tensor, group, op);
      return tensor[1].item<float>();
    };
    EXPECT_EQ(reduced(ReduceOp::kProduct), 24);
    EXPECT_EQ(reduced(ReduceOp::kMinimum), 2);
    EXPECT_EQ(reduced(ReduceOp::kMaximum), 4);
  });
}

TEST_P(AllReduce, WorksOnPermutedTensors) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor tensor = at::arange(6, at::kFloat).view({2, 3}).t();
    all_reduce(tensor, group);
    EXPECT_TRUE(at::equal(tensor, at::arange(6, at::kFloat).mul(2).view({2, 3}).t()));
  });
}

TEST_P(AllReduce, RunsInTheBackgroundUntilWaitedFor) {
  run_ranks(2, [](const Group& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(at::full({1000}, i + group.rank(), at::kFloat));
      works.push_back(all_reduce_async(tensors.back(), group));
    }
    for (int i = 0; i < 8; ++i) {
      const auto at_i = static_cast<std::size_t>(i);
      works[at_i].wait();
      EXPECT_TRUE(works[at_i].is_completed());
      works[at_i].wait();  // again is harmless
      EXPECT_EQ(tensors[at_i][999].item<float>(), static_cast<float>(2 * i + 1));
    }
  });
}

TEST_P(AllReduce, RefusesTensorsWithGaps) {
  try {
    all_reduce(at::zeros({4, 4}).slice(1, 0, 2), Group::self());
    FAIL() << "a tensor with gaps was taken";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("all-reduce"), HasSubstr("[4, 2]"), HasSubstr("contiguous")));
  }
}

// The hint named no engine.
TEST(DeviceTensors, WithoutMemoryAreRefusedByNameOfTheEngine) {
  run_ranks(2, [](const Group& group) {
    try {
      all_reduce(at::empty({2}, at::kMeta), group);
      FAIL() << "a tensor without memory was taken";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("all-reduce was given a tensor on meta"),
                                      HasSubstr("engine shm of group 'threads'"),
                                      HasSubstr("give a tensor with values")));
    }
  });
}

TEST_P(Broadcast, CopiesTheRootsBitsForAnyDtype) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kBool, at::kShort, at::kBFloat16, at::kComplexDouble}) {
    run_ranks(3, [&](const Group& group) {
      const at::Tensor tensor = at::full({7}, group.rank() == 2 ? 1 : 0, dtype);
      broadcast(tensor, 2, group);
      EXPECT_TRUE(at::equal(tensor, at::full({7}, 1, dtype))) << dtype;
    });
  }
}

TEST_P(Broadcast, RefusesARootOutsideTheGroup) {
  EXPECT_THROW(broadcast(at::zeros({1}), 1, Group::self()), UsageError);
  EXPECT_THROW(broadcast(at::zeros({1}), -1, Group::self()), UsageError);
}

TEST_P(AllGather, ConcatenatesInRankOrder) {
  run_ranks(3, [](const Group& group) {
    const at::Tensor input = at::full({2, 2}, group.rank(), at::kShort);
    const at::Tensor output = at::empty({6, 2}, at::kShort);
    all_gather(output, input, group);
    EXPECT_TRUE(
        at::equal(output.select(1, 0), at::arange(6, at::kShort).div(2, "floor").to(at::kShort)));
  });
}

TEST_P(AllGather, RefusesAnOutputThatDoesNotFit) {
  run_ranks(2, [](const Group& group) {
    try {
      all_gather(at::empty({3}), at::empty({2}), group);
      FAIL() << "3 elements for twice 2 were taken";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("[3]"), HasSubstr("[2]"), HasSubstr("2 ranks")));
    }
  });
}

TEST_P(Gather, LeavesTheRootAllRowsInRankOrder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBool, at::kComplexDouble}) {
    run_ranks(3, [&](const Group& group) {
      for (int root = 0; root < 3; ++root) {
        const bool is_root = group.rank() == root;
        const at::Tensor input = at::full({2, 5}, group.rank() % 2, dtype);
        const at::Tensor output = is_root ? at::empty({6, 5}, dtype) : at::Tensor();
        gather(output, input, root, group, "rows");
        const at::Tensor later = is_root ? at::empty({6, 5}, dtype) : at::Tensor();
        gather_async(later, input, root, group).wait();
        if (!is_root) continue;
        const at::Tensor expected =
            at::cat({at::zeros({2, 5}, dtype), at::ones({2, 5}, dtype), at::zeros({2, 5}, dtype)});
        EXPECT_TRUE(at::equal(output, expected) && at::equal(later, expected)) << dtype;
      }
    });
  }
}

TEST_P(Gather, RefusesAnOutputThatDoesNotFitAndARootOutsideTheGroup) {
  run_ranks(2, [](const Group& group) {
    if (group.rank() == 0) {
      EXPECT_THROW(gather(at::empty({3}), at::empty({2}), 0, group), UsageError);
      EXPECT_THROW(gather(at::Tensor(), at::empty({2}), 0, group), UsageError);
    }
    EXPECT_THROW(gather(at::empty({4}), at::empty({2}), 2, group), UsageError);
  });
}

TEST_P(Scatter, GivesEachRankItsSliceOfTheRootsRows) {
  for (const at::ScalarType dtype : {at::kFloat, at::kShort, at::kBFloat16}) {
    run_ranks(3, [&](const Group& group) {
      for (int root = 0; root < 3; ++root) {
        const at::Tensor input =
            group.rank() == root ? at::arange(12).view({6, 2}).to(dtype) : at::Tensor();
        const at::Tensor output = at::empty({2, 2}, dtype);
        scatter(output, input, root, group, "rows");
        const at::Tensor later = at::empty({2, 2}, dtype);
        scatter_async(later, input, root, group).wait();
        const at::Tensor expected = at::arange(4).add(4 * group.rank()).view({2, 2}).to(dtype);
        EXPECT_TRUE(at::equal(output, expected) && at::equal(later, expected)) << dtype;
      }
    });
  }
}

TEST_P(Scatter, RefusesAnInputThatDoesNotFitAndARootOutsideTheGroup) {
  run_ranks(2, [](const Group& group) {
    if (group.rank() == 0) {
      EXPECT_THROW(scatter(at::empty({2}), at::empty({3}), 0, group), UsageError);
    }
    EXPECT_THROW(scatter(at::empty({2}), at::empty({4}), -1, group), UsageError);
  });
}

TEST_P(ReduceScatter, LeavesEachRankItsSlice) {
  run_ranks(3, [](const Group& group) {
    const at::Tensor input = at::arange(6, at::kFloat).mul(group.rank() + 1);
    const at::Tensor output = at::empty({2}, at::kFloat);
    reduce_scatter(output, input, group);
    EXPECT_EQ(output[0].item<float>(), static_cast<float>(12 * group.rank()));
    EXPECT_EQ(output[1].item<float>(), static_cast<float>(12 * group.rank() + 6));
  });
}

TEST_P(AllReduce, AddsInRankOrderOverEveryEngineWhenOrdered) {
  for (const int size : {2, 3, 4}) {
    // Sums of these depend on their order; the last elements are padding of the slices.
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < size; ++rank) inputs.push_back(at::randn({1003}).mul(1e3));
    at::Tensor expected = inputs[0].clone();
    for (int rank = 1; rank < size; ++rank) expected.add_(inputs[static_cast<std::size_t>(rank)]);
    run_ranks(size, [&](const Group& group) {
      const at::Tensor tensor = inputs[static_cast<std::size_t>(group.rank())].clone();
      all_reduce_ordered(tensor, group);
      EXPECT_TRUE(at::equal(tensor, expected)) << size;
      // Half precision: a fold in fp32, rounded once.
      at::Tensor sum = inputs[0].to(at::kHalf).to(at::kFloat);
      for (int rank = 1; rank < size; ++rank) {
        sum.add_(inputs[static_cast<std::size_t>(rank)].to(at::kHalf).to(at::kFloat));
      }
      const at::Tensor half = inputs[static_cast<std::size_t>(group.rank())].to(at::kHalf);
      all_reduce_ordered(half, group);
      EXPECT_TRUE(at::equal(half, sum.to(at::kHalf))) << size;
    });
  }
}

TEST_P(AllReduce, IsFineWithoutElements) {
  run_ranks(2, [](const Group& group) { all_reduce(at::zeros({0}), group); });
}

TEST_P(AllToAll, ExchangesSlices) {
  run_ranks(3, [](const Group& group) {
    const at::Tensor input = at::arange(6, at::kInt).add(10 * group.rank());
    const at::Tensor output = at::empty({6}, at::kInt);
    all_to_all(output, input, group);
    const std::int64_t own = group.rank();
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(output[2 * rank].item<std::int64_t>(), 10 * rank + 2 * own);
    }
  });
}

TEST_P(PointToPoint, KeepsTheOrderOfASenderAndMatchesTags) {
  run_ranks(2, [](const Group& group) {
    if (group.rank() == 0) {
      std::vector<Work> works;
      for (int i = 0; i < 4; ++i) {
        works.push_back(send_async(at::full({100'000}, i, at::kInt), 1, group, i % 2));
      }
      for (Work& work : works) work.wait();
    } else {
      const at::Tensor tensor = at::empty({100'000}, at::kInt);
      for (const int i : {1, 3, 0, 2}) {
        receive(tensor, 0, group, i % 2);
        EXPECT_EQ(tensor[99'999].item<int>(), i);
      }
    }
  });
}

TEST_P(Subgroups, AreMadeOfAnyRanksInAnyOrder) {
  run_ranks(4, [](const Group& group) {
    const Group odd = group.subgroup(std::array{3, 1});
    const Group all = group.subgroup(std::array{2, 0, 3, 1});
    EXPECT_EQ(odd.rank(), group.rank() == 3 ? 0 : group.rank() == 1 ? 1 : -1);
    const at::Tensor tensor = at::full({3}, group.rank(), at::kFloat);
    if (odd.rank() >= 0) {
      all_reduce(tensor, odd);
      EXPECT_EQ(tensor[0].item<float>(), 4);
    } else {
      EXPECT_THROW(all_reduce(tensor, odd), UsageError);
    }
    const at::Tensor root = at::full({1}, group.rank(), at::kInt);
    broadcast(root, 0, all);
    EXPECT_EQ(root.item<int>(), 2);
  });
}

TEST_P(Subgroups, RefuseARankThatIsTwiceOrOutside) {
  run_ranks(2, [](const Group& group) {
    EXPECT_THROW(static_cast<void>(group.subgroup(std::array{0, 0})), UsageError);
    EXPECT_THROW(static_cast<void>(group.subgroup(std::array{0, 2})), UsageError);
  });
}

// The last handle of the group used to go on the group's own thread, which cannot wait for itself.
TEST(BackgroundWork, GoesOnWhenWorkAndGroupAreDropped) {
  run_ranks(2, [](Group group) {
    const at::Tensor input = at::full({100'000}, group.rank(), at::kInt);
    const at::Tensor output = at::empty({200'000}, at::kInt);
    static_cast<void>(all_gather_async(output, input, group));
    static_cast<void>(reduce_scatter_async(at::empty({50'000}, at::kInt), input, group));
    group = Group::self();
  });
}

TEST_P(PointToPoint, RefusesItselfAndStrangers) {
  EXPECT_THROW(send(at::zeros({1}), 0, Group::self()), UsageError);
  run_ranks(2, [](const Group& group) {
    EXPECT_THROW(send(at::zeros({1}), group.rank(), group), UsageError);
    EXPECT_THROW(receive(at::zeros({1}), 2, group), UsageError);
    const Group first = group.subgroup(std::array{0});
    if (group.rank() == 1) {
      EXPECT_THROW(send(at::zeros({1}), 0, first), UsageError);
    }
  });
}

TEST(Messages, TellsAMessageOfAnotherLengthThatHasComeAlready) {
  std::atomic<bool> is_sent = false;
  const auto thrown = run_ranks_catching(2, [&](const Group& group) {
    if (group.rank() == 0) {
      send(at::zeros({2}), 1, group);
      is_sent = true;
      is_sent.notify_all();
      return;
    }
    is_sent.wait(false);
    receive(at::zeros({3}), 0, group);
  });
  EXPECT_THAT(message_of<CommError>(thrown[1]), HasSubstr("rank 0 sent 8 bytes"));
}

// The first is still awaited when the others are done.
TEST(Messages, WaitsForNoMessageButTheOneThatIsAsked) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor first = at::zeros({100'000});
    const at::Tensor second = at::zeros({3});
    if (group.rank() == 0) {
      Work awaited_first = receive_async(first, 1, group, 1);
      Work awaited_second = receive_async(second, 1, group, 2);
      std::vector<at::Tensor> tensors = {at::zeros({2})};
      const auto awaited_third = group.backend()->recv(tensors, 1, 3);
      awaited_second.wait();
      awaited_third->getFuture()->wait();
      EXPECT_FALSE(awaited_first.is_completed());
      send(second, 1, group, 4);
      awaited_first.wait();
      EXPECT_TRUE(at::equal(first, at::full({100'000}, 1.0F)));
      EXPECT_TRUE(at::equal(tensors[0], at::full({2}, 3.0F)));
    } else {
      send(at::full({3}, 2.0F), 0, group, 2);
      send(at::full({2}, 3.0F), 0, group, 3);
      receive(second, 0, group, 4);
      send(at::full({100'000}, 1.0F), 0, group, 1);
    }
    EXPECT_TRUE(at::equal(second, at::full({3}, 2.0F)));
  });
}

TEST(RegisteredTensors, AreReducedInPlaceWithTheSameBits) {
  run_ranks(3, [](const Group& group) {
    const at::Tensor registered = zeros_registered({1000, 301}, at::kFloat, group);
    const at::Tensor values = at::randn({1000, 301}).add(group.rank());
    const at::Tensor ordinary = values.clone();
    registered.copy_(values);
    all_reduce(registered, group);
    all_reduce(ordinary, group);
    EXPECT_TRUE(at::equal(registered, ordinary));
    // A part of it, and a reduce-scatter.
    registered.copy_(values);
    ordinary.copy_(values);
    all_reduce(registered.slice(0, 100, 700), group);
    all_reduce(ordinary.slice(0, 100, 700), group);
    EXPECT_TRUE(at::equal(registered, ordinary));
    const at::Tensor of_registered = at::empty({100, 301});
    const at::Tensor of_ordinary = at::empty({100, 301});
    reduce_scatter(of_registered, registered.slice(0, 0, 300), group);
    reduce_scatter(of_ordinary, ordinary.slice(0, 0, 300), group);
    EXPECT_TRUE(at::equal(of_registered, of_ordinary));
  });
}

TEST_P(AllGatherText, ReturnsTextsOfAnyLengthByRank) {
  run_ranks(3, [](const Group& group) {
    const std::vector<std::string> own = {"", "one", std::string(10'000, 'x')};
    EXPECT_THAT(all_gather_text(own[static_cast<std::size_t>(group.rank())], group),
                ElementsAre("", "one", own[2]));
    EXPECT_THAT(all_gather_text("", group), ElementsAre("", "", ""));
  });
}

TEST(GroupOfOne, MakesEveryCollectiveACopy) {
  const Group group = Group::self();
  EXPECT_FALSE(group.is_empty());
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.engine(), "none");
  EXPECT_EQ(group.summation_order(), SummationOrder::kRank);
  const at::Tensor tensor = at::full({2}, 3.0F);
  all_reduce(tensor, group);
  broadcast(tensor, 0, group);
  barrier(group);
  const at::Tensor gathered = at::zeros({2});
  all_gather(gathered, tensor, group);
  const at::Tensor scattered = at::zeros({2});
  reduce_scatter(scattered, tensor, group);
  EXPECT_TRUE(at::equal(gathered, tensor) && at::equal(scattered, tensor));
  const at::Tensor at_root = at::zeros({2});
  gather(at_root, tensor, 0, group);
  const at::Tensor from_root = at::zeros({2});
  scatter(from_root, tensor, 0, group);
  EXPECT_TRUE(at::equal(at_root, tensor) && at::equal(from_root, tensor));
  EXPECT_THAT(all_gather_text("me", group), ElementsAre("me"));
}

// It was taken for a group of one: ranks trained apart without a word.
TEST(EmptyGroup, IsRefusedByEveryCollective) {
  const Group group;
  EXPECT_TRUE(group.is_empty());
  const at::Tensor tensor = at::zeros({2});
  const std::vector<std::function<void()>> calls = {
      [&] { all_reduce(tensor, group); },
      [&] { all_reduce_ordered(tensor, group); },
      [&] { reduce(tensor, 0, group); },
      [&] { broadcast(tensor, 0, group); },
      [&] { all_gather(at::zeros({2}), tensor, group); },
      [&] { gather(at::zeros({2}), tensor, 0, group); },
      [&] { scatter(at::zeros({2}), tensor, 0, group); },
      [&] { reduce_scatter(at::zeros({2}), tensor, group); },
      [&] { all_to_all(at::zeros({2}), tensor, group); },
      [&] { barrier(group); },
      [&] { static_cast<void>(all_gather_text("me", group)); },
      [&] { static_cast<void>(group.subgroup(std::array{0})); },
      [&] { static_cast<void>(functional::all_gather(tensor, group)); },
      [&] { check_equal_values({}, group, "nothing"); }};
  for (const auto& call : calls) {
    try {
      call();
      FAIL() << "an empty group was taken by call " << &call - calls.data();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("empty group"), HasSubstr("world.group")));
    }
  }
}

TEST(SummationOrder, IsRankOrderInSharedMemoryAndOverTwoRanksOfGloo) {
  run_ranks(3,
            [](const Group& group) { EXPECT_EQ(group.summation_order(), SummationOrder::kRank); });
  trireme::testing::engine_of_ranks = "gloo";
  run_ranks(2,
            [](const Group& group) { EXPECT_EQ(group.summation_order(), SummationOrder::kRank); });
  run_ranks(3, [](const Group& group) {
    EXPECT_EQ(group.summation_order(), SummationOrder::kUnspecified);
  });
  trireme::testing::engine_of_ranks = "shm";
}

TEST_P(CommErrors, NameOperationNumberAndGroupWhenAPeerIsGone) {
  const auto thrown = run_ranks_catching(2, [](Group group) {
    if (group.rank() == 1) return;  // closes its connections
    all_reduce(at::zeros({4}), group);
  });
  EXPECT_THAT(message_of<CommError>(thrown[0]),
              AllOf(HasSubstr("all-reduce"), HasSubstr("number 2"), HasSubstr("group 'threads'"),
                    HasSubstr("failed after"), HasSubstr("hint:")));
}

TEST_P(CommErrors, ComeAfterTheDeadlineWhenAPeerHangs) {
  std::atomic<bool> failed = false;
  const auto thrown = run_ranks_catching(
      2,
      [&](Group group) {
        if (group.rank() == 1) {
          failed.wait(false);
          return;
        }
        try {
          barrier(group);
        } catch (...) {
          failed = true;
          failed.notify_all();
          throw;
        }
      },
      std::chrono::milliseconds(500));
  EXPECT_THAT(message_of<CommError>(thrown[0]), AllOf(HasSubstr("barrier"), HasSubstr("0.5 s")));
}

TEST(Engines, AreChosenByNameAndListedWhenUnknown) {
  EXPECT_EQ(choose_engine("auto", true).name, "shm");
  EXPECT_EQ(choose_engine("auto", false).name, "hierarchy");
  try {
    choose_engine("nccI", true);
    FAIL() << "an unknown engine was found";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'nccI'"), HasSubstr("gloo"), HasSubstr("TRIREME_ENGINE")));
  }
}

TEST(Engines, NameTheInterfaceThatDoesNotExist) {
  const Engine& gloo = choose_engine("gloo", true);
  try {
    static_cast<void>(connect(gloo, {.store = c10::make_intrusive<c10d::HashStore>(),
                                     .rank = 0,
                                     .size = 2,
                                     .group_name = "test",
                                     .world_ranks = {},
                                     .machines = {},
                                     .interface = "nowhere0",
                                     .timeout = std::chrono::seconds(1)}));
    FAIL() << "an interface that does not exist was used";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("nowhere0"), HasSubstr("TRIREME_INTERFACE")));
  }
}

}  // namespace
}  // namespace trireme::comm
