// SPDX-License-Identifier: Apache-2.0
// Horovod's collectives, and values and states from one rank to all.
#include <trireme/parallel/horovod.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/allocations.h>
#include <tests/ranks/parity.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using comm::Group;
using test::make_net;
using test::make_optimizer;
using test::Net;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

// Every rank throws UsageError with these words.
void expect_usage_error(int size, const std::string& words,
                        const std::function<void(const Group&)>& body) {
  for (const std::exception_ptr& thrown : run_ranks_catching(size, body)) {
    EXPECT_THAT(message_of<UsageError>(thrown), HasSubstr(words));
  }
}

TEST(Horovod, NeedsInitFirst) {
  EXPECT_FALSE(hvd::is_initialized());
  EXPECT_THROW(hvd::rank(), UsageError);
  EXPECT_THROW(hvd::allreduce(torch::ones(2)), UsageError);
}

TEST(Horovod, IsAWorldOfOneWhenStartedAlone) {
  hvd::init();
  EXPECT_TRUE(hvd::is_initialized());
  EXPECT_EQ(hvd::rank(), 0);
  EXPECT_EQ(hvd::size(), 1);
  EXPECT_EQ(hvd::local_rank(), 0);
  EXPECT_EQ(hvd::local_size(), 1);
  EXPECT_EQ(hvd::cross_rank(), 0);
  EXPECT_EQ(hvd::cross_size(), 1);
  const torch::Tensor ones = torch::ones(2);
  EXPECT_TRUE(torch::equal(hvd::allreduce(ones), ones));
  EXPECT_TRUE(torch::equal(hvd::allgather(ones), ones));
  EXPECT_TRUE(torch::equal(hvd::alltoall(ones).first, ones));
  EXPECT_EQ(hvd::broadcast_object("settings", 0), "settings");
  hvd::barrier();
  // Again, without a collective, which would need memory: it would wait for the other ranks.
  EXPECT_TRUE(test::allocations_of([] { hvd::init(); }).empty());
  hvd::shutdown();
  EXPECT_FALSE(hvd::is_initialized());
}

TEST(Horovod, ReducesIntoANewTensorOrInPlace) {
  run_ranks(3, [](const Group& group) {
    const torch::Tensor own = torch::full({2, 2}, group.rank() + 1.0);
    EXPECT_TRUE(torch::equal(hvd::allreduce(own, hvd::Average, group), torch::full({2, 2}, 2.0)));
    EXPECT_TRUE(torch::equal(hvd::allreduce(own, hvd::Sum, group), torch::full({2, 2}, 6.0)));
    EXPECT_TRUE(torch::equal(hvd::allreduce(own, hvd::Product, group), torch::full({2, 2}, 6.0)));
    EXPECT_TRUE(torch::equal(hvd::allreduce(own, hvd::Min, group), torch::full({2, 2}, 1.0)));
    EXPECT_TRUE(torch::equal(hvd::allreduce(own, hvd::Max, group), torch::full({2, 2}, 3.0)));
    EXPECT_TRUE(torch::equal(own, torch::full({2, 2}, group.rank() + 1.0)));
    hvd::allreduce_(own, hvd::Sum, group);
    EXPECT_TRUE(torch::equal(own, torch::full({2, 2}, 6.0)));
  });
}

TEST(Horovod, ReducesATransposedTensorInItsOwnOrder) {
  run_ranks(2, [](const Group& group) {
    const torch::Tensor base = torch::arange(6, torch::kFloat).view({2, 3}) * (group.rank() + 1);
    const torch::Tensor own = group.rank() == 0 ? base : base.t().contiguous().t();
    EXPECT_TRUE(torch::equal(hvd::allreduce(own, hvd::Sum, group),
                             torch::arange(6, torch::kFloat).view({2, 3}) * 3));
  });
}

TEST(Horovod, WorksInPlaceOnTensorsOfOtherStrides) {
  run_ranks(2, [](const Group& group) {
    const auto make = [&](double factor) {
      const torch::Tensor base = torch::arange(6, torch::kFloat).view({2, 3}) * factor;
      return group.rank() == 0 ? base : base.t().contiguous().t();
    };
    const torch::Tensor expected = torch::arange(6, torch::kFloat).view({2, 3});
    for (const hvd::Op op : {hvd::Sum, hvd::Average}) {
      const torch::Tensor own = make(group.rank() + 1);
      const auto strides = own.strides().vec();
      hvd::allreduce_(own, op, group);
      EXPECT_TRUE(torch::equal(own, expected * (op == hvd::Sum ? 3 : 1.5)));
      EXPECT_EQ(own.strides(), strides);
    }
    torch::Tensor own = make(group.rank() + 1);
    own.set_requires_grad(true);
    hvd::broadcast_(own, 0, group);
    EXPECT_TRUE(torch::equal(own, expected));
    const torch::Tensor part = torch::zeros({4, 4});  // with gaps
    hvd::broadcast_(part.narrow(1, 1, 2).fill_(group.rank()), 1, group);
    EXPECT_EQ(part.sum().item<float>(), 8);
  });
}

// The sum used to be infinite.
TEST(Horovod, AveragesHalfPrecisionWhoseSumItCannotHold) {
  run_ranks(3, [](const Group& group) {
    const torch::Tensor own = torch::full({5}, 40000 + 64 * group.rank(), torch::kHalf);
    const torch::Tensor expected = torch::full({5}, 40064, torch::kHalf);
    EXPECT_TRUE(torch::equal(hvd::allreduce(own, hvd::Average, group), expected));
    const torch::Tensor with_gaps = torch::zeros({5, 2}, torch::kHalf).select(1, 0);
    with_gaps.copy_(own);
    hvd::allreduce_(with_gaps, hvd::Average, group);
    EXPECT_TRUE(torch::equal(with_gaps, expected));
  });
}

TEST(Horovod, RefusesTheAverageOfIntegers) {
  expect_usage_error(2, "average of Long", [](const Group& group) {
    hvd::allreduce(torch::ones(2, torch::kLong), hvd::Average, group);
  });
}

TEST(Horovod, GathersTensorsOfDifferentLengths) {
  run_ranks(3, [](const Group& group) {
    // 0, 1 and 2 rows of two elements.
    const torch::Tensor own = torch::full({group.rank(), 2}, group.rank(), torch::kInt);
    const torch::Tensor expected = torch::tensor({1, 1, 2, 2, 2, 2}, torch::kInt).view({3, 2});
    EXPECT_TRUE(torch::equal(hvd::allgather(own, group), expected));
    EXPECT_TRUE(torch::equal(hvd::allgather(torch::tensor(group.rank()), group),
                             torch::arange(3, torch::kInt)));
    EXPECT_EQ(hvd::allgather(torch::empty({0, 4}), group).sizes(), (std::vector<int64_t>{0, 4}));
  });
}

TEST(Horovod, SaysWhichTensorsCannotBeGathered) {
  expect_usage_error(2, "rank 0 has Float [*, 2], rank 1 has Float [*, 3]", [](const Group& group) {
    hvd::allgather(torch::zeros({1, 2 + group.rank()}), group);
  });
}

TEST(Horovod, BroadcastsFromTheRoot) {
  run_ranks(3, [](const Group& group) {
    const torch::Tensor own = torch::full({3}, group.rank(), torch::kInt);
    EXPECT_TRUE(torch::equal(hvd::broadcast(own, 2, group), torch::full({3}, 2, torch::kInt)));
    EXPECT_TRUE(torch::equal(own, torch::full({3}, group.rank(), torch::kInt)));
    hvd::broadcast_(own, 1, group);
    EXPECT_TRUE(torch::equal(own, torch::full({3}, 1, torch::kInt)));
    const std::string text(static_cast<std::size_t>(group.rank()) * 5, 'x');
    EXPECT_EQ(hvd::broadcast_object(text, 2, group), "xxxxxxxxxx");
    EXPECT_EQ(hvd::broadcast_object(text, 0, group), "");
    EXPECT_EQ(hvd::allgather_object(text, group)[1], "xxxxx");
  });
}

TEST(Horovod, ExchangesRowsByTheirSplits) {
  run_ranks(2, [](const Group& group) {
    // Rank 0 has rows 0 1 2 and keeps one; rank 1 has 10 11 12 13 and keeps none.
    const bool is_first = group.rank() == 0;
    const torch::Tensor own = is_first ? torch::arange(3) : torch::arange(10, 14);
    const std::vector<std::int64_t> splits =
        is_first ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{4, 0};
    const auto [tensor, received] = hvd::alltoall(own, splits, group);
    EXPECT_TRUE(torch::equal(
        tensor, is_first ? torch::tensor({0, 10, 11, 12, 13}) : torch::tensor({1, 2})));
    EXPECT_EQ(received,
              is_first ? (std::vector<std::int64_t>{1, 4}) : (std::vector<std::int64_t>{2, 0}));
    const auto equal = hvd::alltoall(torch::arange(4) + 10 * group.rank(), {}, group);
    EXPECT_TRUE(torch::equal(
        equal.first, is_first ? torch::tensor({0, 1, 10, 11}) : torch::tensor({2, 3, 12, 13})));
  });
}

TEST(Horovod, RefusesSplitsThatDoNotFit) {
  expect_usage_error(2, "alltoall on rank 1: splits are [1, 3] for 3 rows and 2 ranks",
                     [](const Group& group) {
                       const std::int64_t last = group.rank() == 0 ? 2 : 3;
                       hvd::alltoall(torch::arange(3), {1, last}, group);
                     });
  expect_usage_error(2, "3 rows cannot be cut into 2 equal parts",
                     [](const Group& group) { hvd::alltoall(torch::arange(3), {}, group); });
}

TEST(Horovod, BroadcastsParametersAndBuffersOfAModule) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1 + static_cast<std::uint64_t>(group.rank()));
    net->norm->running_mean.fill_(group.rank());
    hvd::broadcast_parameters(*net, 1, group);
    Net expected = make_net(2);
    for (const auto& item : expected->named_parameters()) {
      EXPECT_TRUE(torch::equal(net->named_parameters()[item.key()], item.value())) << item.key();
    }
    EXPECT_TRUE(torch::equal(net->norm->running_mean, torch::ones(4)));
  });
}

TEST(Horovod, BroadcastsNamedParametersAlone) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear first(2, 2);
    torch::nn::Linear second(2, 2);
    const torch::NoGradGuard no_grad;
    first->weight.fill_(group.rank());
    second->weight.fill_(group.rank());
    const auto named = hvd::named_parameters(*first, "first");
    EXPECT_EQ(named[0].first, "first.weight");
    hvd::broadcast_parameters(named, 0, group);
    EXPECT_TRUE(torch::equal(first->weight, torch::zeros({2, 2})));
    EXPECT_TRUE(torch::equal(second->weight, torch::full({2, 2}, group.rank())));
  });
}

TEST(Horovod, RefusesToBroadcastWhatDiffers) {
  expect_usage_error(2, "weight [3, 2]", [](const Group& group) {
    hvd::broadcast_parameters(*torch::nn::Linear(2, 3 + group.rank()), 0, group);
  });
  expect_usage_error(2, "rank 0 has root rank 0, rank 1 has root rank 1", [](const Group& group) {
    hvd::broadcast_parameters(*torch::nn::Linear(2, 3), group.rank(), group);
  });
  expect_usage_error(2, "root_rank is 2, expected 0 to 1", [](const Group& group) {
    hvd::broadcast_parameters(*torch::nn::Linear(2, 3), 2, group);
  });
}

void train(Net& net, torch::optim::Optimizer& optimizer, int first_step, int steps) {
  for (int step = first_step; step < first_step + steps; ++step) {
    optimizer.zero_grad();
    test::loss_of(net, test::make_batch(step, 0)).backward();
    optimizer.step();
  }
}

class OptimizerState : public ::testing::TestWithParam<std::string> {};

// A rank whose optimizer is new, and one whose optimizer has gone elsewhere, go on like the root.
TEST_P(OptimizerState, MakesAllRanksGoOnAsTheRoot) {
  Net expected = make_net(1);
  const auto alone = make_optimizer(GetParam(), expected->parameters());
  train(expected, *alone, 0, 5);
  run_ranks(3, [&](const Group& group) {
    Net net = make_net(1 + static_cast<std::uint64_t>(group.rank()));
    const auto optimizer = make_optimizer(GetParam(), net->parameters());
    if (group.rank() == 0) train(net, *optimizer, 0, 3);
    if (group.rank() == 2) train(net, *optimizer, 7, 2);
    hvd::broadcast_parameters(*net, 0, group);
    hvd::broadcast_optimizer_state(*optimizer, 0, group);
    train(net, *optimizer, 3, 2);
    for (const auto& item : expected->named_parameters()) {
      EXPECT_TRUE(torch::equal(net->named_parameters()[item.key()], item.value()))
          << item.key() << " on rank " << group.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Horovod, OptimizerState,
                         ::testing::Values("sgd", "momentum", "adam", "adamw", "rmsprop",
                                           "adagrad"));

TEST(Horovod, BroadcastsTheOptionsOfEveryGroup) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    const auto optimizer = make_optimizer("momentum", net->parameters());
    if (group.rank() == 0) optimizer->param_groups()[1].options().set_lr(0.125);
    hvd::broadcast_optimizer_state(*optimizer, 0, group);
    EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.05);
    EXPECT_EQ(optimizer->param_groups()[1].options().get_lr(), 0.125);
  });
}

// The root's optimizer is as new as it was; another's state from before would live on.
TEST(Horovod, DropsTheStateThatTheRootDoesNotHave) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    const auto optimizer = make_optimizer("adam", net->parameters());
    if (group.rank() == 1) train(net, *optimizer, 0, 1);
    hvd::broadcast_optimizer_state(*optimizer, 0, group);
    EXPECT_TRUE(optimizer->state().empty());
  });
}

TEST(Horovod, RefusesOptimizersThatDiffer) {
  expect_usage_error(2, "rank 1 has torch::optim::AdamW with groups of 12 parameters",
                     [](const Group& group) {
                       Net net = make_net(1);
                       const auto optimizer =
                           make_optimizer(group.rank() == 0 ? "adam" : "adamw", net->parameters());
                       hvd::broadcast_optimizer_state(*optimizer, 0, group);
                     });
  expect_usage_error(2, "rank 1 has 0_0 [3, 2]", [](const Group& group) {
    torch::nn::Linear linear(2, 2 + group.rank());
    torch::optim::SGD sgd(linear->parameters(), 0.1);
    hvd::broadcast_optimizer_state(sgd, 0, group);
  });
  expect_usage_error(
      2, "optimizer.0_0.momentum_buffer is Float [2, 2], its parameter Double [2, 2]",
      [](const Group& group) {
        torch::nn::Linear linear(2, 2);
        torch::optim::SGD sgd(linear->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        linear(torch::ones({1, 2})).sum().backward();
        if (group.rank() == 1) sgd.step();  // only the root's state counts
        linear->to(torch::kDouble);
        hvd::broadcast_optimizer_state(sgd, 1, group);
      });
  expect_usage_error(2, "LBFGS", [](const Group& group) {
    torch::nn::Linear linear(2, 2);
    torch::optim::LBFGS optimizer(linear->parameters());
    hvd::broadcast_optimizer_state(optimizer, 0, group);
  });
}

}  // namespace
}  // namespace trireme
