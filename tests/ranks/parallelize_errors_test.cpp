// SPDX-License-Identifier: Apache-2.0
// What parallelize refuses, and what ranks learn of an error on another rank.
#include <trireme/base/error.h>
#include <trireme/parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using comm::Group;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::Net;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::run_ranks;
using testing::run_ranks_catching;

TEST(ParallelizeErrors, NameAnEmptyGroupAndAnAxisThatNobodyUses) {
  Net net = make_net(1);
  EXPECT_THAT(test::usage_error([&] { const DataParallel parallel(*net, Group()); }),
              AllOf(HasSubstr("parallelize was given an empty group"), HasSubstr("world.group")));
  const DataParallel alone(*net, Group::self());
  run_ranks(2, [](const Group& group) {
    Net typed = make_net(1);
    EXPECT_THAT(
        test::usage_error([&] { auto all = parallelize(typed, {.mesh = {{"dta", 2}}}, group); }),
        HasSubstr("did you mean 'data'?"));
  });
}

TEST(ParallelizeErrors, NameTheFirstParameterThatDiffersOnEveryRank) {
  const auto thrown = run_ranks_catching(3, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4),
                              torch::nn::Linear(4, group.rank() == 2 ? 5 : 4));
    const DataParallel parallel(*net, group);
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(message_of<UsageError>(exception), AllOf(HasSubstr("rank 0 has 1.weight [4, 4]"),
                                                         HasSubstr("rank 2 has 1.weight [5, 4]")));
  }
}

TEST(ParallelizeErrors, NameABufferThatOneRankLacks) {
  const auto thrown = run_ranks_catching(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(
        torch::nn::BatchNorm1dOptions(4).track_running_stats(group.rank() == 0)));
    const DataParallel parallel(*net, group);
  });
  EXPECT_THAT(message_of<UsageError>(thrown[0]),
              AllOf(HasSubstr("buffer"), HasSubstr("rank 1 has nothing more")));
}

TEST(ParallelizeErrors, RefuseAModuleThatIsParallelAlready) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    const DataParallel parallel(*net, group);
    try {
      const DataParallel again(*net, group);
      FAIL() << "parallelized twice";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("parameter weight"), HasSubstr("once")));
    }
  });
}

TEST(ParallelizeErrors, RefuseImpossiblePlans) {
  torch::nn::Linear net(2, 2);
  EXPECT_THROW(static_cast<void>(parallelize(*net, {.micro_batches = 0}, Group::self())),
               UsageError);
  EXPECT_THROW(static_cast<void>(parallelize(*net, {.bucket_bytes = -1}, Group::self())),
               UsageError);
  EXPECT_THROW(static_cast<void>(parallelize(*net, {.allreduce_streams = 17}, Group::self())),
               UsageError);
  run_ranks(2, [&](const Group& group) {
    EXPECT_THROW(static_cast<void>(parallelize(*net, {.data_parallel = false}, group)), UsageError);
  });
}

// What rank 1 of two alone was given. The other waited until the deadline.
void expect_both_to_hear(const std::string& what, const std::function<void(const Group&)>& call) {
  const auto thrown = run_ranks_catching(2, call);
  EXPECT_THAT(message_of<UsageError>(thrown[0]),
              AllOf(HasSubstr("rank 1 could not "), HasSubstr(what)));
  EXPECT_THAT(message_of<UsageError>(thrown[1]),
              AllOf(HasSubstr(what), Not(HasSubstr("could not"))));
}

TEST(ParallelizeErrors, OfOneRankReachAllRanks) {
  expect_both_to_hear("sparse_gradients names bogus", [](const Group& group) {
    Plan plan;
    if (group.rank() == 1) plan.sparse_gradients = {"bogus"};
    static_cast<void>(parallelize(torch::nn::Linear(2, 2), plan, group));
  });
  expect_both_to_hear("micro_batches is 0", [](const Group& group) {
    static_cast<void>(
        parallelize(torch::nn::Linear(2, 2), {.micro_batches = 1 - group.rank()}, group));
  });
  expect_both_to_hear("has gaps or overlaps", [](const Group& group) {
    torch::nn::Linear net(2, 2);
    if (group.rank() == 1) net->weight.set_data(torch::zeros({2, 4}).slice(1, 0, 4, 2));
    static_cast<void>(parallelize(net, {}, group));
  });
  expect_both_to_hear("post-accumulate-gradient hook", [](const Group& group) {
    torch::nn::Linear net(2, 2);
    std::optional<Parallelized> first;
    first.emplace(parallelize(group.rank() == 1 ? net : torch::nn::Linear(2, 2), {}, group));
    static_cast<void>(parallelize(net, {}, group));
  });
  expect_both_to_hear("a module by the name 'a.b'", [](const Group& group) {
    const torch::nn::Linear net(2, 2);
    static_cast<void>(parallelize({{group.rank() == 1 ? "a.b" : "a", net}}, {}, group));
  });
  expect_both_to_hear("two parameters have the name twice", [](const Group& group) {
    const auto tensor = [] { return torch::zeros({2}).set_requires_grad(true); };
    const std::string second = group.rank() == 1 ? "twice" : "once";
    static_cast<void>(parallelize({{"twice", tensor()}, {second, tensor()}}, {}, group));
  });
  expect_both_to_hear("none of the parameters that the plan cuts", [](const Group& group) {
    const torch::nn::Linear net(64, 64);
    const torch::nn::Linear other(2, 2);
    Parallelized parallelized = parallelize(net, {.zero_level = 1}, group);
    torch::optim::SGD optimizer((group.rank() == 1 ? other : net)->parameters(), 0.1);
    parallelized.shard(optimizer);
  });
  expect_both_to_hear("does not step slices", [](const Group& group) {
    const torch::nn::Linear net(64, 64);
    Parallelized parallelized = parallelize(net, {.zero_level = 1}, group);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    torch::optim::SGD other(net->parameters(), 0.1);
    parallelized.shard(optimizer);
    parallelized.unshard(group.rank() == 1 ? other : optimizer);
  });
  expect_both_to_hear("LBFGS", [](const Group& group) {
    const torch::nn::Linear net(64, 64);
    torch::optim::SGD one(net->parameters(), 0.1);
    torch::optim::LBFGS another(net->parameters());
    torch::optim::Optimizer& optimizer =
        group.rank() == 1 ? static_cast<torch::optim::Optimizer&>(another) : one;
    const ShardedDataParallel parallel(net, optimizer, group, 1);
  });
  expect_both_to_hear("the gradient of parameter weight is sparse", [](const Group& group) {
    const torch::nn::Linear net(4, 4);
    if (group.rank() == 1) net->weight.mutable_grad() = torch::zeros({4, 4}).to_sparse();
    static_cast<void>(parallelize(
        net, {.mesh = {{"tensor", 2}}, .layouts = {{"*", {{"tensor", Replicate{}}}}}}, group));
  });
}

TEST(ParallelizeErrors, ShowWherePlansDiffer) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    try {
      static_cast<void>(parallelize(*net, {.micro_batches = 1 + group.rank()}, group));
      FAIL() << "ranks with other plans went on";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("micro-batches        1"), HasSubstr("2")));
    }
  });
}

TEST(ParallelizeErrors, TellThatRanksSendOverDifferentNumbersOfStreams) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    try {
      static_cast<void>(parallelize(*net, {.allreduce_streams = 1 + group.rank()}, group));
      FAIL() << "ranks with one and two streams went on";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("all-reduce streams   1"), HasSubstr("rank 1")));
    }
  });
}

TEST(ParallelizeErrors, SurfaceFromBackwardWhenAPeerIsGone) {
  const auto thrown = run_ranks_catching(
      2,
      [](Group group) {
        Net net = make_net(1);
        const DataParallel parallel(*net, group);
        if (group.rank() == 1) return;
        group = Group::self();
        loss_of(net, make_batch(0, 0)).backward();
      },
      std::chrono::milliseconds(2000));
  EXPECT_THAT(message_of<CommError>(thrown[0]),
              AllOf(HasSubstr("failed after"), HasSubstr("rank 0 of 2")));
}

TEST(ParallelizeErrors, NameTheParameterWithASparseGradient) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(3, 10);  // nothing tells that it is used as an embedding
    const DataParallel parallel(*net, group);
    try {
      torch::embedding(net->weight, torch::tensor({1, 2}), -1, false, /*sparse=*/true)
          .sum()
          .backward();
      FAIL() << "a sparse gradient was averaged";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("weight"), HasSubstr("Sparse"),
                                      HasSubstr("Plan::sparse_gradients")));
    }
  });
}

struct Thrower : torch::autograd::Function<Thrower> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("backward failed here");
  }
};

TEST(ParallelizeErrors, TellThatAnEarlierBackwardFailed) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear first(2, 2);
    torch::nn::Linear second(2, 2);
    torch::nn::Sequential both(first, second);
    const DataParallel parallel(*both, group);
    EXPECT_ANY_THROW(second(Thrower::apply(first(torch::ones({1, 2})))).sum().backward());
    try {
      both->forward(torch::ones({1, 2})).sum().backward();
      FAIL() << "went on after a failed backward";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("earlier backward()"));
    }
  });
}

}  // namespace
}  // namespace trireme
