// SPDX-License-Identifier: Apache-2.0
// Data parallel against one process that accumulates the same micro-batches: bit by bit where two
// ranks add, within a bound where the engine chooses the order. The numerics contract is
// docs/design/numerics.md.
#include <trireme/base/error.h>
#include <trireme/parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using comm::Group;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::run_ranks;
using testing::run_ranks_catching;

// Convolution, batch norm (with buffers), a tied weight and one parameter in double.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    first = register_module("first", torch::nn::Linear(4 * 6 * 6, 13));
    second = register_module("second", torch::nn::Linear(13, 13));
    third = register_module("third", torch::nn::Linear(13, 13));
    third->weight = third->register_parameter("weight2", second->weight);
    scale = register_parameter("scale", torch::ones({3}, torch::kDouble));
    unused = register_parameter("unused", torch::ones({5}));
  }

  torch::Tensor forward(const torch::Tensor& images, bool use_all = false) {
    torch::Tensor x = torch::relu(norm(conv(images))).flatten(1);
    x = third(torch::relu(second(torch::relu(first(x)))));
    x = x * scale.sum().to(torch::kFloat);
    return use_all ? x + unused.sum() : x;
  }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  torch::Tensor scale, unused;
};
TORCH_MODULE(Net);

Net make_net(std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  Net net;
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::rand(parameter.sizes(), generator, parameter.options()) - 0.4);
  }
  return net;
}

torch::Tensor make_batch(int step, std::int64_t micro_batch) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000L * step + micro_batch));
  return torch::rand({6, 1, 8, 8}, generator, torch::kFloat);
}

torch::Tensor loss_of(Net& net, const torch::Tensor& batch, bool use_all = false) {
  return net->forward(batch, use_all).square().mean();
}

torch::optim::SGD make_optimizer(Net& net) {
  return torch::optim::SGD(net->parameters(),
                           torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
}

struct Case {
  int ranks;
  std::int64_t micro_batches;
  std::int64_t bucket_bytes;
  bool set_to_none;
  std::int64_t streams = 1;
};

// One process, the same tree of sums: ranks outside, micro-batches inside, divided once.
std::vector<torch::Tensor> train_alone(const Case& c, int steps) {
  Net net = make_net(1);
  auto optimizer = make_optimizer(net);
  auto parameters = net->parameters();
  for (int step = 0; step < steps; ++step) {
    std::vector<torch::Tensor> total(parameters.size());
    for (int rank = 0; rank < c.ranks; ++rank) {
      net->zero_grad();
      for (std::int64_t i = 0; i < c.micro_batches; ++i)
        loss_of(net, make_batch(step, rank * c.micro_batches + i)).backward();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const torch::Tensor gradient = parameters[p].grad();
        if (gradient.defined())
          total[p] = total[p].defined() ? total[p] + gradient : gradient.clone();
      }
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      parameters[p].mutable_grad() =
          total[p].defined() ? total[p] / (c.ranks * c.micro_batches) : torch::Tensor();
    }
    optimizer.step();
  }
  return parameters;
}

std::vector<torch::Tensor> train_parallel(const Case& c, int steps, const Group& group) {
  Net net = make_net(1 + static_cast<std::uint64_t>(group.rank()));  // rank 0's values count
  const Parallelized parallelized = parallelize(*net,
                                                {.micro_batches = c.micro_batches,
                                                 .bucket_bytes = c.bucket_bytes,
                                                 .first_bucket_bytes = c.bucket_bytes,
                                                 .allreduce_streams = c.streams},
                                                group);
  auto optimizer = make_optimizer(net);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad(c.set_to_none);
    for (std::int64_t i = 0; i < c.micro_batches; ++i) {
      loss_of(net, make_batch(step, group.rank() * c.micro_batches + i)).backward();
    }
    optimizer.step();
  }
  return net->parameters();
}

class DataParallelParity : public ::testing::TestWithParam<Case> {};

TEST_P(DataParallelParity, GivesTheBitsOfOneProcessWithTheSameMicroBatches) {
  const Case c = GetParam();
  const auto expected = train_alone(c, 3);
  run_ranks(c.ranks, [&](const Group& group) {
    const auto parameters = train_parallel(c, 3, group);
    ASSERT_EQ(parameters.size(), expected.size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      EXPECT_TRUE(torch::equal(parameters[p], expected[p]))
          << "parameter " << p << " on rank " << group.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(RanksMicroBatchesAndBuckets, DataParallelParity,
                         ::testing::Values(Case{1, 1, 1, true}, Case{1, 3, 1 << 20, true},
                                           Case{2, 1, 1, true}, Case{2, 1, 4096, true},
                                           Case{2, 1, 1 << 20, true}, Case{2, 1, 4096, false},
                                           Case{2, 2, 4096, true}, Case{2, 3, 1 << 20, false},
                                           Case{3, 1, 4096, true}, Case{4, 2, 1 << 20, false},
                                           Case{5, 1, 1 << 20, true}, Case{3, 2, 4096, true, 3}));

TEST(DataParallelOverThreeRanksOfGloo, IsTheSameOnAllRanksAndCloseToOneProcess) {
  trireme::testing::engine_of_ranks = "gloo";
  const Case c{3, 1, 4096, true};
  const auto expected = train_alone(c, 3);
  std::vector<std::vector<torch::Tensor>> of_rank(3);
  run_ranks(3, [&](const Group& group) {
    of_rank[static_cast<std::size_t>(group.rank())] = train_parallel(c, 3, group);
  });
  trireme::testing::engine_of_ranks = "shm";
  for (std::size_t p = 0; p < expected.size(); ++p) {
    EXPECT_TRUE(torch::equal(of_rank[0][p], of_rank[1][p]) &&
                torch::equal(of_rank[0][p], of_rank[2][p]));
    // Three summands in another order: a few units in the last place of the largest element, a
    // step.
    const double difference = (of_rank[0][p] - expected[p]).abs().max().item<double>();
    EXPECT_LE(difference, 1e-5 * expected[p].abs().max().item<double>()) << "parameter " << p;
  }
}

TEST(DataParallel, AlignsEveryGradientTo64Bytes) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    const DataParallel parallel(*net, group);
    loss_of(net, make_batch(0, group.rank())).backward();
    for (const auto& parameter : net->named_parameters()) {
      if (!parameter.value().grad().defined()) continue;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(parameter.value().grad().data_ptr()) % 64, 0U)
          << parameter.key();
    }
  });
}

TEST(DataParallel, LeavesAParameterAloneThatNoRankUsed) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    const DataParallel parallel(*net, group);
    loss_of(net, make_batch(0, 0)).backward();
    EXPECT_FALSE(net->unused.grad().defined());
  });
}

// It used to be averaged again in every step, which halved it where micro-batches are two.
TEST(DataParallel, KeepsTheOldGradientOfAParameterThatNoRankUses) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    const DataParallel parallel(*net, group, /*micro_batches=*/2);
    const auto step = [&](bool use_all) {
      for (int i = 0; i < 2; ++i) loss_of(net, make_batch(0, i), use_all).backward();
    };
    step(true);
    const torch::Tensor before = net->unused.grad().clone();
    step(false);
    step(false);
    EXPECT_TRUE(torch::equal(net->unused.grad(), before));
  });
}

// Copying rank 0's buffers used to count as a change of what the second graph had saved.
TEST(DataParallel, RunsTwoForwardsBeforeTwoBackwardsThroughBatchNorm) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    const DataParallel parallel(*net, group);
    const torch::Tensor first = loss_of(net, make_batch(0, 0));
    const torch::Tensor second = loss_of(net, make_batch(0, 1));
    first.backward();
    second.backward();
  });
}

TEST(Parallelized, BeginsANewStepAfterOneThatWasAbandoned) {
  Net net = make_net(1);
  Parallelized parallelized = parallelize(*net, {.micro_batches = 2}, Group());
  const auto step = [&] {
    net->zero_grad();
    for (int i = 0; i < 2; ++i) loss_of(net, make_batch(0, i)).backward();
    return net->scale.grad().clone();
  };
  const torch::Tensor expected = step();
  loss_of(net, make_batch(0, 7)).backward();
  parallelized.abandon_step();
  EXPECT_TRUE(torch::equal(step(), expected));
}

TEST(Parallelized, RefusesToGoOnOverSeveralRanksAfterAnAbandonedStep) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    Parallelized parallelized = parallelize(*net, {.micro_batches = 2}, group);
    loss_of(net, make_batch(0, 0)).backward();
    parallelized.abandon_step();
    try {
      loss_of(net, make_batch(0, 0)).backward();
      FAIL() << "went on";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("gone on without it"));
    }
  });
}

TEST(DataParallel, CountsAParameterThatSomeRanksUsedAsZeroOnTheOthers) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    const DataParallel parallel(*net, group);
    auto optimizer = make_optimizer(net);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      loss_of(net, make_batch(0, 0), /*use_all=*/group.rank() == 1).backward();
      Net alone = make_net(1);
      if (step > 0) continue;
      loss_of(alone, make_batch(0, 0), true).backward();
      EXPECT_TRUE(torch::equal(net->unused.grad(), alone->unused.grad() / 2));
    }
  });
}

TEST(DataParallel, GivesAllRanksTheBuffersOfRankZero) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    const DataParallel parallel(*net, group);
    loss_of(net, make_batch(0, group.rank())).backward();
    Net alone = make_net(1);
    loss_of(alone, make_batch(0, 0)).backward();
    EXPECT_TRUE(torch::equal(net->norm->running_mean, alone->norm->running_mean));
    EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 1);
  });
}

TEST(DataParallel, LeavesAnOrdinaryModuleBehindWhenDestroyed) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    {
      const DataParallel parallel(*net, group);
    }
    loss_of(net, make_batch(0, group.rank())).backward();
    Net alone = make_net(1);
    loss_of(alone, make_batch(0, group.rank())).backward();
    EXPECT_TRUE(torch::equal(net->first->weight.grad(), alone->first->weight.grad()));
  });
}

TEST(DataParallel, KeepsTheMemoryFormatOfParameters) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3));
    conv->weight.set_data(conv->weight.data().contiguous(torch::MemoryFormat::ChannelsLast));
    const DataParallel parallel(*conv, group);
    conv(torch::ones({1, 3, 5, 5})).sum().backward();
    EXPECT_EQ(conv->weight.grad().strides(), conv->weight.strides());
  });
}

TEST(Parallelized, SumsANumberOverRanksWithTheGradients) {
  run_ranks(3, [](const Group& group) {
    Net net = make_net(1);
    Parallelized parallelized = parallelize(*net, {.micro_batches = 2}, group);
    for (int step = 0; step < 2; ++step) {
      loss_of(net, make_batch(0, 0)).backward();
      if (step == 0) parallelized.add_to_step(torch::full({1, 1}, group.rank() + 0.5));
      loss_of(net, make_batch(0, 0)).backward();
      EXPECT_EQ(parallelized.sum_of_step(), step == 0 ? 4.5 : 0);
    }
  });
}

TEST(Parallelized, KeepsTheNumberOfAGroupOfOne) {
  torch::nn::Linear net(2, 2);
  Parallelized parallelized = parallelize(*net, {}, Group());
  EXPECT_EQ(parallelized.sum_of_step(), 0);
  parallelized.add_to_step(torch::tensor(2.5));
  EXPECT_EQ(parallelized.sum_of_step(), 2.5);
  EXPECT_THROW(parallelized.add_to_step(torch::ones({2})), UsageError);
  EXPECT_THROW(parallelized.add_to_step(torch::tensor(1)), UsageError);
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
  EXPECT_THROW(static_cast<void>(parallelize(*net, {.micro_batches = 0}, Group())), UsageError);
  EXPECT_THROW(static_cast<void>(parallelize(*net, {.bucket_bytes = -1}, Group())), UsageError);
  EXPECT_THROW(static_cast<void>(parallelize(*net, {.allreduce_streams = 17}, Group())),
               UsageError);
  run_ranks(2, [&](const Group& group) {
    EXPECT_THROW(static_cast<void>(parallelize(*net, {.data_parallel = false}, group)), UsageError);
  });
}

TEST(ParallelizeErrors, TellThatRanksSendOverDifferentNumbersOfStreams) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    try {
      static_cast<void>(parallelize(*net, {.allreduce_streams = 1 + group.rank()}, group));
      FAIL() << "ranks with one and two streams went on";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("over 1 streams, rank 1 over 2"));
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
        group = Group();
        loss_of(net, make_batch(0, 0)).backward();
      },
      std::chrono::milliseconds(2000));
  EXPECT_THAT(message_of<CommError>(thrown[0]),
              AllOf(HasSubstr("failed after"), HasSubstr("rank 0 of 2")));
}

TEST(ParallelizeErrors, NameTheParameterWithASparseGradient) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(10, 3).sparse(true));
    const DataParallel parallel(*net, group);
    try {
      net(torch::tensor({1, 2})).sum().backward();
      FAIL() << "a sparse gradient was averaged";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("weight"), HasSubstr("Sparse")));
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

TEST(Plan, PrintsItsSettings) {
  EXPECT_THAT(to_string(Plan{}),
              AllOf(HasSubstr("micro-batches        1\n"), HasSubstr("26214400")));
  EXPECT_EQ(Plan{}, Plan{});
  EXPECT_THAT((Plan{.micro_batches = 2}), Not(Plan{}));
}

}  // namespace
}  // namespace trireme
