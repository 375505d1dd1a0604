// SPDX-License-Identifier: Apache-2.0
// What parallelize does to a module besides the numbers (parity_test.cpp has those) and the errors
// (parallelize_errors_test.cpp).
#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/graph/capture.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/horovod.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/parallel/state_dict.h>
#include <trireme/parallel/tensor_parallel/distribute_module.h>
#include <trireme/predict/explain.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using comm::Group;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::Net;
using ::testing::HasSubstr;
using testing::run_ranks;

// Registered the other way round than they are used.
struct BackwardsImpl : torch::nn::Module {
  torch::nn::Linear last = register_module("last", torch::nn::Linear(4, 4));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
  torch::Tensor forward(const torch::Tensor& x) { return last(first(x)); }
};
TORCH_MODULE(Backwards);

TEST(DataParallel, LearnsInWhichOrderGradientsBecomeReady) {
  run_ranks(2, [](const Group& group) {
    Backwards net;
    const DataParallel parallel(*net, group);
    const auto comes_before = [](const torch::nn::Linear& a, const torch::nn::Linear& b) {
      return a->weight.grad().const_data_ptr() < b->weight.grad().const_data_ptr();
    };
    std::vector<torch::Tensor> gradients;
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      net->forward(torch::ones({3, 4})).sum().backward();
      EXPECT_TRUE(comes_before(net->last, net->first));
      for (const torch::Tensor& parameter : net->parameters()) {
        gradients.push_back(parameter.grad().clone());
      }
    }
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(torch::equal(gradients[i], gradients[4 + i]));
  });
}

// Such a rank used to leave after the first step, because buckets are filled anew there.
TEST(Parallelized, LetsARankWithoutBatchesJoinEveryStep) {
  run_ranks(2, [](const Group& group) {
    Backwards net;
    Parallelized parallelized = parallelize(*net, {}, group);
    int steps = 0;
    const auto count_step = [&] { ++steps; };
    for (int step = 0; step < 3 && group.rank() == 0; ++step) {
      net->forward(torch::ones({3, 4})).sum().backward();
      count_step();
    }
    parallelized.join(count_step);
    EXPECT_EQ(steps, 3);
  });
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
  Parallelized parallelized = parallelize(*net, {.micro_batches = 2}, Group::self());
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
    torch::optim::SGD optimizer(net->parameters(), 0.05);
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

// Buffers of every kind of memory, with the rank's number in them.
struct BuffersImpl : torch::nn::Module {
  explicit BuffersImpl(double rank) {
    const auto numbers = torch::arange(24).reshape({2, 3, 4}).to(torch::kFloat) + 100 * rank;
    add("permuted", numbers.clone().permute({2, 0, 1}));
    add("columns", numbers.clone().slice(2, 0, 4, 2));
    add("inner", numbers.clone().slice(1, 1, 3));
    add("expanded", torch::full({1, 3}, rank).expand({4, 3}));
    add("one_for_all", torch::full({}, rank).expand({2, 2}));
    add("empty", torch::empty({0, 3}));
    add("empty_columns", torch::empty({2, 0}).expand({2, 0}));
    add("number", torch::full({}, rank, torch::kDouble));
    add("flags", (numbers > 50).slice(2, 1, 4, 2));
    add("complex", torch::complex(numbers, -numbers).slice(2, 0, 4, 3));
    add("channels_last",
        torch::full({1, 2, 2, 2}, rank).contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear(x); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 3));

 private:
  void add(const std::string& name, const torch::Tensor& buffer) { register_buffer(name, buffer); }
};
TORCH_MODULE(Buffers);

// What was not dense used to be refused, and in steps to be taken from other memory.
TEST(DataParallel, GivesAllRanksBuffersOfAnyStrides) {
  run_ranks(3, [](const Group& group) {
    const auto expect_those_of_rank_0 = [&](Buffers& net, double value) {
      const Buffers expected(value);
      for (const auto& item : net->named_buffers()) {
        EXPECT_TRUE(torch::equal(item.value(), expected->named_buffers()[item.key()]))
            << item.key() << " on rank " << group.rank();
      }
    };
    Buffers net(group.rank());
    const DataParallel parallel(net, group);
    expect_those_of_rank_0(net, 0);
  });
  run_ranks(3, [](const Group& group) {
    Buffers net(0);
    const DataParallel parallel(net, group);
    // Each rank changes them in its own way, as batch norm would.
    for (const auto& item : net->named_buffers()) {
      if (item.key() == "flags") {
        item.value().logical_xor_(torch::full({}, group.rank() > 0));
      } else if (item.key() == "expanded") {
        item.value()[0].add_(group.rank());
      } else if (item.key() == "one_for_all") {
        item.value()[0][0].add_(group.rank());
      } else {
        item.value().add_(group.rank());
      }
    }
    net->forward(torch::ones({2, 3})).sum().backward();
    const Buffers expected(0);
    for (const auto& item : net->named_buffers()) {
      EXPECT_TRUE(torch::equal(item.value(), expected->named_buffers()[item.key()]))
          << item.key() << " on rank " << group.rank();
    }
  });
}

TEST(DataParallel, TakesAModuleAsItsHolderOrASharedPointerToo) {
  run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    {
      const DataParallel parallel(net, group);
    }
    {
      const Parallelized parallel = parallelize(net.ptr(), {}, group);
    }
    const std::shared_ptr<torch::nn::Module> none;
    EXPECT_THAT(test::usage_error([&] { const DataParallel parallel(none, group); }),
                HasSubstr("a null pointer was given in place of a module"));
  });
}

// Only `*net` compiled.
TEST(Modules, AreTakenAsTheirHoldersEverywhere) {
  Net net = make_net(1);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const test::TemporaryFolder folder;
  materialize(net);
  EXPECT_EQ(hvd::named_parameters(net).size(), hvd::named_parameters(*net).size());
  EXPECT_EQ(checkpoint::module_tensors(net.ptr()).size(), checkpoint::module_tensors(*net).size());
  const auto path = checkpoint::save({.folder = folder.path()}, net, &optimizer, {});
  EXPECT_NO_THROW(checkpoint::load(path, net, &optimizer));
  EXPECT_NO_THROW(EXPECT_TRUE(checkpoint::load_model(path, net.ptr()).missing.empty()));
  {
    Parallelized parallel = parallelize(net, {}, Group::self());
    FullState full = full_state(parallel, net, optimizer);
    load_full_state(full, parallel, net, optimizer);
    load_partial_state(partial_state(parallel, net, optimizer), parallel, net, optimizer);
    const auto again = save_checkpoint({.folder = folder.path()}, parallel, net, &optimizer, {});
    EXPECT_NO_THROW(load_checkpoint(again, parallel, net, &optimizer));
    EXPECT_NO_THROW(EXPECT_TRUE(load_model(again, parallel, net).missing.empty()));
  }
  torch::nn::Linear linear(2, 2);
  const auto forward = [&] { return linear(torch::ones({3, 2})).sum(); };
  const Plan plan = {.mesh = {{"tensor", 2}}, .layouts = {{"weight", {"tensor", Shard{0}}}}};
  EXPECT_FALSE(predict::explain(linear, plan, forward).operators.empty());
  const graph::Graph graph = graph::capture(
      linear, [&](const auto& in) { return std::vector{linear(in[0])}; }, {torch::ones({3, 2})});
  EXPECT_GT(graph.num_nodes(), 0);
  const DeviceMesh mesh(Group::self(), {{"tensor", 1}});
  EXPECT_EQ(distribute_module(linear, mesh, plan.layouts).size(), 2U);
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
  Parallelized parallelized = parallelize(*net, {}, Group::self());
  EXPECT_EQ(parallelized.sum_of_step(), 0);
  parallelized.add_to_step(torch::tensor(2.5));
  EXPECT_EQ(parallelized.sum_of_step(), 2.5);
  EXPECT_THROW(parallelized.add_to_step(torch::ones({2})), UsageError);
  EXPECT_THROW(parallelized.add_to_step(torch::tensor(1)), UsageError);
}

TEST(DataParallel, DividesHalfPrecisionByWhatItCannotHold) {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  net->to(torch::kBFloat16);
  const DataParallel parallel(*net, Group::self(), 257);
  for (int i = 0; i < 257; ++i) net(torch::ones({1, 1}, torch::kBFloat16)).sum().mul(2).backward();
  // The sum itself stops growing at 512; 512 / 257 is 1.99, 512 / 256 would be 2.
  EXPECT_LT(net->weight.grad().item<float>(), 2);
}

}  // namespace
}  // namespace trireme
