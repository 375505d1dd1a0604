// SPDX-License-Identifier: Apache-2.0
// What is so on one stage, or on one rank, and not on others: mistakes that all hear of, tensors
// that one mode uses, weights that several stages use.
#include <trireme/base/error.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/parallel/state_dict.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Arranged;
using test::Network;
using test::part_of;
using test::plan_of;
using test::usage_error;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;

using Tensors = std::vector<torch::Tensor>;

// -- mistakes ----------------------------------------------------------------------------------

// Of four ranks, two stages along two rows of data: what each is told.
std::vector<std::string> told(
    const Arranged& arranged,
    const std::function<void(TrainingStep&, torch::optim::SGD&, const Network&)>& mistake) {
  std::vector<std::string> messages(4);
  run_ranks(4, [&](const comm::Group& group) {
    const Network network = test::skipping_net();
    torch::optim::SGD optimizer(network.module->parameters(), 0.1);
    TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
    messages[static_cast<std::size_t>(group.rank())] =
        usage_error([&] { mistake(pipeline, optimizer, network); });
  });
  return messages;
}

TEST(Asymmetry, AllHearOfAParameterThatOneStageFroze) {
  for (const int zero_level : {0, 2}) {
    const Arranged arranged{.pipe = 2, .data = 2, .zero_level = zero_level};
    EXPECT_THAT(
        told(arranged,
             [](TrainingStep& pipeline, torch::optim::SGD& optimizer, const Network& network) {
               pipeline.shard(optimizer);
               static_cast<void>(pipeline.step(network.batch(4, 0)));
               network.module->as<test::SkippingNetImpl>()->last->weight.requires_grad_(false);
               static_cast<void>(pipeline.step(network.batch(4, 1)));
             }),
        Each(AllOf(HasSubstr("last.weight"), HasSubstr("frozen"))));
  }
}

TEST(Asymmetry, AllHearOfAnOptimizerThatOneStageForgot) {
  EXPECT_THAT(told({.pipe = 2, .data = 2, .zero_level = 1},
                   [](TrainingStep& pipeline, torch::optim::SGD&, const Network& network) {
                     auto* const net = network.module->as<test::SkippingNetImpl>();
                     Tensors of_first;
                     for (const auto& part : {net->first, net->second, net->bottom}) {
                       for (const auto& parameter : part->parameters())
                         of_first.push_back(parameter);
                     }
                     torch::optim::SGD optimizer(of_first, 0.1);
                     pipeline.shard(optimizer);
                     static_cast<void>(pipeline.step(network.batch(4, 0)));
                   }),
              Each(HasSubstr("is in none that it knows")));
}

// What is wrong on rank 1 alone, in the constructor and in shard(). The other rank waited until the
// deadline.
TEST(Asymmetry, AllHearOfWhatOneRankCannotBegin) {
  using Begin = std::function<void(const Network&, Plan, const comm::Group&)>;
  const auto expect_heard = [](const std::string& what, const Begin& begin) {
    std::vector<std::string> messages(2);
    run_ranks(2, [&](const comm::Group& group) {
      const Network network = test::skipping_net();
      messages[static_cast<std::size_t>(group.rank())] =
          usage_error([&] { begin(network, plan_of({.pipe = 2, .data = 1}, network), group); });
    });
    EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1 could not "), HasSubstr(what)));
    EXPECT_THAT(messages[1], HasSubstr(what));
  };
  expect_heard("micro_batches", [](const Network& network, Plan plan, const comm::Group& group) {
    if (group.rank() == 1) plan.micro_batches = -1;
    const TrainingStep step(*network.module, network.forward, plan, group);
  });
  expect_heard("device", [](const Network& network, const Plan& /*plan*/,
                            const comm::Group& group) {
    const at::Device missing(at::kXPU, 7);
    const std::vector<at::Device> devices = {at::kCPU, group.rank() == 1 ? missing : at::kCPU};
    const Plan plan = plan_of({.pipe = 2, .data = 2}, network);
    const TrainingStep step(*network.module, network.forward, plan, group, {.devices = devices});
  });
  expect_heard("is empty", [](const Network& network, const Plan& plan, const comm::Group& group) {
    const graph::Forward none;
    const TrainingStep step(*network.module, group.rank() == 1 ? none : network.forward, plan,
                            group);
  });
  expect_heard("LBFGS", [](const Network& network, const Plan& /*plan*/, const comm::Group& group) {
    const Plan plan = plan_of({.pipe = 1, .data = 2, .zero_level = 1}, network);
    TrainingStep step(*network.module, network.forward, plan, group);
    torch::optim::SGD one(network.module->parameters(), 0.1);
    torch::optim::LBFGS another(network.module->parameters());
    step.shard(group.rank() == 1 ? static_cast<torch::optim::Optimizer&>(another) : one);
  });
}

// The ranks of the other row of data have nothing to complain of.
TEST(Asymmetry, AllHearOfAPipelineThatReadTwoBatches) {
  const auto expected = Each(AnyOf(HasSubstr("ranks differ in the batch of one pipeline"),
                                   HasSubstr("could not read its batch"),
                                   HasSubstr("could not go on with what was captured")));
  for (const int good_steps : {0, 1}) {
    const auto read = [&](bool evaluates) {
      return told({.pipe = 2, .data = 2},
                  [&](TrainingStep& pipeline, torch::optim::SGD&, const Network& network) {
                    const auto run = [&](const Tensors& batch) {
                      if (evaluates) {
                        static_cast<void>(pipeline.evaluate(batch));
                      } else {
                        static_cast<void>(pipeline.step(batch));
                      }
                    };
                    for (int i = 0; i < good_steps; ++i) run(network.batch(4, 0));
                    run(network.batch(4, pipeline.group().rank() == 1 ? 7 : 0));
                  });
    };
    EXPECT_THAT(read(/*evaluates=*/false), expected);
    EXPECT_THAT(read(/*evaluates=*/true), expected);
  }
}

// The last stage alone would find that it cannot put them together.
TEST(Asymmetry, AllHearOfResultsThatCannotBePutTogether) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    auto* const net = network.module->as<test::SkippingNetImpl>();
    const auto forward = [net](const Tensors& in) -> Tensors {
      const torch::Tensor output = net->forward(in[0]);
      const torch::Tensor flat = output.flatten(1);
      return {torch::mse_loss(output, in[1]), flat.matmul(flat.t())};
    };
    TrainingStep pipeline(*net, forward, plan_of({.pipe = 2}, network), group);
    EXPECT_THAT(usage_error([&] { static_cast<void>(pipeline.evaluate(network.batch(5, 0))); }),
                AllOf(HasSubstr("result 1 of forward"), HasSubstr("cannot be put together")));
    EXPECT_EQ(pipeline.evaluate(network.batch(4, 0)).results[0].defined(), group.rank() == 1);
  });
}

TEST(Asymmetry, RefusesWhatIsOfAnOrdinaryBackward) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    TrainingStep pipeline(*network.module, network.forward, plan_of({.pipe = 2}, network), group);
    pipeline.prepare(network.batch(4, 0));
    Parallelized& parallelized = pipeline.parallelized();
    const auto refused = HasSubstr("was called on the Parallelized of a training step");
    EXPECT_THAT(usage_error([&] { static_cast<void>(parallelized.sharing()); }), refused);
    EXPECT_THAT(usage_error([&] { static_cast<void>(parallelized.no_sync()); }), refused);
    EXPECT_THAT(usage_error([&] { parallelized.join([] {}); }), refused);
    EXPECT_THAT(usage_error([&] { parallelized.finish_without_backward(); }), refused);
    EXPECT_THAT(usage_error([&] { parallelized.abandon_step(); }), refused);
  });
}

// -- one mode ----------------------------------------------------------------------------------

// A batch norm without weights between two convolutions, and a scale for evaluation alone.
struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    const auto layer = [](int in, int out) {
      return torch::nn::Conv1d(torch::nn::Conv1dOptions(in, out, 3).padding(1));
    };
    first = register_module("first", layer(2, 4));
    norm = register_module("norm",
                           torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).affine(false)));
    last = register_module("last", layer(4, 1));
    scale = register_buffer("scale", torch::full({1}, 1.5));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor out = last(torch::relu(norm(first(x))));
    return is_training() ? out : out * scale;
  }
  torch::nn::Conv1d first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor scale;
};

Network normed_net() {
  auto net = std::make_shared<NormedNetImpl>();
  test::fill(*net);
  Network network = test::skipping_net();
  network.module = net;
  network.forward = [net = net.get()](const Tensors& in) -> Tensors {
    return {torch::mse_loss(net->forward(in[0]), in[1])};
  };
  network.modules = {"first", "norm"};
  return network;
}

torch::Tensor loss_alone(const Network& network, const Tensors& batch) {
  const torch::NoGradGuard no_grad;
  network.module->eval();
  std::vector<torch::Tensor> losses;
  const auto micro_batches = test::micro_batches_of(batch, 2);
  for (const auto& micro_batch : micro_batches) losses.push_back(network.forward(micro_batch)[0]);
  network.module->train();
  return test::mean_of(losses, test::weights_of(micro_batches));
}

// The statistics are those that the stage of the norm has gathered.
TEST(OneMode, BuffersStayWithTheStageThatTrainedThem) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = normed_net();
    TrainingStep pipeline(*network.module, network.forward, plan_of({.pipe = 2}, network), group);
    for (int step = 0; step < 3; ++step) static_cast<void>(pipeline.step(network.batch(6, step)));
    const torch::Tensor got = pipeline.evaluate(network.batch(6, 7)).loss;
    pipeline.gather_parameters();
    EXPECT_TRUE(torch::equal(got, loss_alone(network, network.batch(6, 7))));
  });
}

// What evaluation alone uses is there on every rank, with the values of a checkpoint.
TEST(OneMode, WhatOnlyEvaluationUsesIsLoadedWhereItIsUsed) {
  const test::TemporaryFolder folder;
  std::filesystem::path path;
  torch::Tensor expected;
  run_ranks(2, [&](const comm::Group& group) {
    const Network network = normed_net();
    network.module->as<NormedNetImpl>()->scale.fill_(4);
    TrainingStep pipeline(*network.module, network.forward, plan_of({.pipe = 2}, network), group);
    pipeline.prepare(network.batch(6, 0));
    const auto saved = save_checkpoint({.folder = folder.path()}, pipeline.parallelized(),
                                       *network.module, nullptr, {});
    if (group.rank() == 0) path = saved;
    const torch::Tensor loss = pipeline.evaluate(network.batch(6, 7)).loss;
    if (group.rank() == 0) expected = loss.clone();
  });
  run_ranks(2, [&](const comm::Group& group) {
    const Network network = normed_net();
    TrainingStep pipeline(*network.module, network.forward, plan_of({.pipe = 2}, network), group);
    pipeline.prepare(network.batch(6, 0));
    load_checkpoint(path, pipeline.parallelized(), *network.module, nullptr);
    EXPECT_TRUE(torch::equal(pipeline.evaluate(network.batch(6, 7)).loss, expected));
  });
}

// -- several stages ----------------------------------------------------------------------------

// One weight in three places.
struct ThriceNetImpl : torch::nn::Module {
  ThriceNetImpl() {
    shared = register_parameter("shared", torch::zeros({4, 4}));
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(4, 4));
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      x = torch::tanh(layers->ptr<torch::nn::LinearImpl>(i)->forward(x)).matmul(shared);
    }
    return x;
  }
  torch::Tensor shared;
  torch::nn::ModuleList layers;
};

Network thrice_net() {
  auto net = std::make_shared<ThriceNetImpl>();
  test::fill(*net);
  return {.module = net,
          .forward = [net = net.get()](const Tensors& in) -> Tensors {
            return {torch::mse_loss(net->forward(in[0]), in[1])};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> Tensors {
            return {test::numbers({rows, 4}, step), test::numbers({rows, 4}, step + 100)};
          },
          .modules = {"layers.0", "layers.1", "layers.2"}};
}

// As autograd adds up what a weight's uses give: with one micro-batch on each rank along data,
// that is a loop over these ranks in one process.
TEST(SharedWeights, HaveTheBitsOfOneBackwardForEachRankAlongData) {
  for (const int data : {1, 2}) {
    for (const int zero_level : {0, 1, 3}) {
      const Network plain = thrice_net();
      const Tensors whole = plain.batch(4L * data, 0);
      torch::Tensor sum;
      for (int rank = 0; rank < data; ++rank) {
        plain.module->zero_grad();
        plain.forward(part_of(whole, rank, data))[0].backward();
        const torch::Tensor& gradient = plain.module->as<ThriceNetImpl>()->shared.grad();
        sum = sum.defined() ? sum + gradient : gradient.clone();
      }
      const torch::Tensor expected =
          plain.module->as<ThriceNetImpl>()->shared.detach() - 0.5 * (sum / data);
      run_ranks(3 * data, [&](const comm::Group& group) {
        const Arranged arranged{
            .pipe = 3, .data = data, .zero_level = zero_level, .micro_batches = 1};
        SCOPED_TRACE(::testing::PrintToString(arranged));
        const Network network = thrice_net();
        torch::optim::SGD optimizer(network.module->parameters(), 0.5);
        TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
        pipeline.shard(optimizer);
        static_cast<void>(pipeline.step(part_of(whole, pipeline.data_group().rank(), data)));
        optimizer.step();
        pipeline.gather_parameters();
        EXPECT_TRUE(torch::equal(network.module->as<ThriceNetImpl>()->shared, expected));
      });
    }
  }
}

// The other stage has nothing of this optimizer.
TEST(SeveralOptimizers, GiveTheirStateWholeOneByOne) {
  run_ranks(4, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    auto* const net = network.module->as<test::SkippingNetImpl>();
    Tensors rest;
    for (const auto& item : net->named_parameters()) {
      if (!item.key().starts_with("first")) rest.push_back(item.value());
    }
    torch::optim::SGD of_first(net->first->parameters(),
                               torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD of_rest(rest, 0.1);
    TrainingStep pipeline(*net, network.forward,
                          plan_of({.pipe = 2, .data = 2, .zero_level = 1}, network), group);
    pipeline.shard(of_first);
    pipeline.shard(of_rest);
    for (int step = 0; step < 2; ++step) {
      static_cast<void>(pipeline.step(network.batch(4, step)));
      of_first.step();
      of_rest.step();
    }
    FullState state;
    for (int root = 0; root < 4; ++root) {
      FullState full = full_state(pipeline.parallelized(), *net, of_first, root);
      if (root == group.rank()) state = std::move(full);
    }
    EXPECT_EQ(state.optimizer.tensors.size(), 2);  // momentum of weight and bias
    EXPECT_EQ(state.module.size(), net->named_parameters().size());
    load_full_state(state, pipeline.parallelized(), *net, of_first);
    static_cast<void>(pipeline.step(network.batch(4, 2)));  // goes on
    of_first.step();
  });
}

}  // namespace
}  // namespace trireme
