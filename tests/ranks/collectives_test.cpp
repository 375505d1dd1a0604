// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/collectives.h>

#include <trireme/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trireme::testing::message_of;
using trireme::testing::run_ranks;
using trireme::testing::run_ranks_catching;

TEST(AllReduce, SumsOverRanksForEveryCommonDtype) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kInt, at::kLong, at::kByte}) {
    run_ranks(3, [&](const Group& group) {
      const at::Tensor tensor = at::full({5, 3}, group.rank() + 1, dtype);
      all_reduce(tensor, group);
      EXPECT_TRUE(at::equal(tensor, at::full({5, 3}, 6, dtype))) << dtype;
    });
  }
}

TEST(AllReduce, TakesProductMinimumAndMaximum) {
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

TEST(AllReduce, WorksOnPermutedTensors) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor tensor = at::arange(6, at::kFloat).view({2, 3}).t();
    all_reduce(tensor, group);
    EXPECT_TRUE(at::equal(tensor, at::arange(6, at::kFloat).mul(2).view({2, 3}).t()));
  });
}

TEST(AllReduce, RunsInTheBackgroundUntilWaitedFor) {
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

TEST(AllReduce, RefusesTensorsWithGaps) {
  try {
    all_reduce(at::zeros({4, 4}).slice(1, 0, 2), Group());
    FAIL() << "a tensor with gaps was taken";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("all-reduce"), HasSubstr("[4, 2]"), HasSubstr("contiguous")));
  }
}

TEST(Broadcast, CopiesTheRootsBitsForAnyDtype) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kBool, at::kShort, at::kBFloat16, at::kComplexDouble}) {
    run_ranks(3, [&](const Group& group) {
      const at::Tensor tensor = at::full({7}, group.rank() == 2 ? 1 : 0, dtype);
      broadcast(tensor, 2, group);
      EXPECT_TRUE(at::equal(tensor, at::full({7}, 1, dtype))) << dtype;
    });
  }
}

TEST(Broadcast, RefusesARootOutsideTheGroup) {
  EXPECT_THROW(broadcast(at::zeros({1}), 1, Group()), UsageError);
  EXPECT_THROW(broadcast(at::zeros({1}), -1, Group()), UsageError);
}

TEST(AllGather, ConcatenatesInRankOrder) {
  run_ranks(3, [](const Group& group) {
    const at::Tensor input = at::full({2, 2}, group.rank(), at::kShort);
    const at::Tensor output = at::empty({6, 2}, at::kShort);
    all_gather(output, input, group);
    EXPECT_TRUE(
        at::equal(output.select(1, 0), at::arange(6, at::kShort).div(2, "floor").to(at::kShort)));
  });
}

TEST(AllGather, RefusesAnOutputThatDoesNotFit) {
  run_ranks(2, [](const Group& group) {
    try {
      all_gather(at::empty({3}), at::empty({2}), group);
      FAIL() << "3 elements for twice 2 were taken";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("[3]"), HasSubstr("[2]"), HasSubstr("2 ranks")));
    }
  });
}

TEST(ReduceScatter, LeavesEachRankItsSlice) {
  run_ranks(3, [](const Group& group) {
    const at::Tensor input = at::arange(6, at::kFloat).mul(group.rank() + 1);
    const at::Tensor output = at::empty({2}, at::kFloat);
    reduce_scatter(output, input, group);
    EXPECT_EQ(output[0].item<float>(), static_cast<float>(12 * group.rank()));
    EXPECT_EQ(output[1].item<float>(), static_cast<float>(12 * group.rank() + 6));
  });
}

TEST(AllGatherText, ReturnsTextsOfAnyLengthByRank) {
  run_ranks(3, [](const Group& group) {
    const std::vector<std::string> own = {"", "one", std::string(10'000, 'x')};
    EXPECT_THAT(all_gather_text(own[static_cast<std::size_t>(group.rank())], group),
                ElementsAre("", "one", own[2]));
    EXPECT_THAT(all_gather_text("", group), ElementsAre("", "", ""));
  });
}

TEST(GroupOfOne, MakesEveryCollectiveACopy) {
  const Group group;
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
  EXPECT_THAT(all_gather_text("me", group), ElementsAre("me"));
}

TEST(SummationOrderOfGloo, IsRankOrderForTwoRanksOnly) {
  run_ranks(2,
            [](const Group& group) { EXPECT_EQ(group.summation_order(), SummationOrder::kRank); });
  run_ranks(3, [](const Group& group) {
    EXPECT_EQ(group.summation_order(), SummationOrder::kUnspecified);
  });
}

TEST(CommErrors, NameOperationNumberAndGroupWhenAPeerIsGone) {
  const auto thrown = run_ranks_catching(2, [](Group group) {
    if (group.rank() == 1) return;  // closes its connections
    all_reduce(at::zeros({4}), group);
  });
  EXPECT_THAT(
      message_of<CommError>(thrown[0]),
      AllOf(HasSubstr(
                "all-reduce (number 2 of group 'threads', rank 0 of 2, engine gloo) failed after"),
            HasSubstr("hint:")));
}

TEST(CommErrors, ComeAfterTheDeadlineWhenAPeerHangs) {
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
  EXPECT_EQ(choose_engine("auto").name, "gloo");
  try {
    choose_engine("nccI");
    FAIL() << "an unknown engine was found";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'nccI'"), HasSubstr("gloo"), HasSubstr("TRIREME_ENGINE")));
  }
}

TEST(Engines, NameTheInterfaceThatDoesNotExist) {
  const Engine& gloo = choose_engine("gloo");
  try {
    connect(gloo,
            {.store = c10::make_intrusive<c10d::HashStore>(),
             .rank = 0,
             .size = 2,
             .one_host = true,
             .interface = "nowhere0",
             .timeout = std::chrono::seconds(1)},
            "test");
    FAIL() << "an interface that does not exist was used";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("nowhere0"), HasSubstr("TRIREME_INTERFACE")));
  }
}

}  // namespace
}  // namespace trireme::comm
