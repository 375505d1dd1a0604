// SPDX-License-Identifier: Apache-2.0
// Modules that run batch norm over all ranks without knowing, and what is refused.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/gradients/sync_batch_norm.h>

#include <gmock/gmock.h>
#include <tests/ranks/close_tensors.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <sstream>

namespace trireme {
namespace {

using comm::Group;
using detail::SyncBatchNorm;
using detail::synchronized_batch_norm;
using ::testing::AllOf;
using testing::expect_close;
using ::testing::HasSubstr;
using testing::message_of;
using testing::random_tensor;
using testing::run_ranks;
using testing::run_ranks_catching;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::optional<double> momentum = 0.1) {
    namespace nn = torch::nn;
    convolution = register_module("convolution", nn::Conv2d(nn::Conv2dOptions(2, 4, 3)));
    images = register_module("images", nn::BatchNorm2d(nn::BatchNormOptions(4).momentum(momentum)));
    features = register_module(
        "features", nn::BatchNorm1d(nn::BatchNormOptions(3).momentum(momentum).affine(false)));
    linear = register_module("linear", nn::Linear(4 * 6 * 6, 3));
    const torch::NoGradGuard no_grad;
    std::uint64_t seed = 100;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(random_tensor(parameter.sizes(), at::kFloat, seed++) * 0.3);
    }
    to(at::kDouble);
  }

  torch::Tensor forward(const torch::Tensor& batch) {
    const torch::Tensor x = torch::relu(images(convolution(batch)));
    return features(linear(x.flatten(1)));
  }

  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d images{nullptr};
  torch::nn::BatchNorm1d features{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Net);

torch::Tensor images(std::int64_t first, std::int64_t count, int step) {
  return random_tensor({9, 2, 8, 8}, at::kDouble, static_cast<std::uint64_t>(step))
      .narrow(0, first, count);
}

torch::Tensor targets(std::int64_t first, std::int64_t count) {
  return random_tensor({9, 3}, at::kDouble, 77).narrow(0, first, count);
}

// Three steps of SGD; `forward` runs the net and `exchange` adds up the gradients of the ranks.
template <typename Forward, typename Exchange>
void train(const Net& net, std::int64_t first, std::int64_t count, const Forward& forward,
           const Exchange& exchange) {
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (forward(images(first, count, step)) - targets(first, count)).square().sum().backward();
    for (const torch::Tensor& parameter : net->parameters()) exchange(parameter.grad());
    optimizer.step();
  }
}

void expect_same_state(const Net& actual, const Net& expected, double bound) {
  const auto compare = [&](const auto& own, const auto& others) {
    for (const auto& item : own) {
      const torch::Tensor& other = others[item.key()];
      if (bound == 0) {
        EXPECT_TRUE(at::equal(item.value(), other)) << item.key();
      } else {
        expect_close(item.value(), other, bound, item.key());
      }
    }
  };
  compare(actual->named_parameters(), expected->named_parameters());
  compare(actual->named_buffers(), expected->named_buffers());
}

TEST(SyncBatchNorm, TrainsAModuleLikeOneProcessWithTheWholeBatch) {
  for (const std::optional<double> momentum : {std::optional(0.1), std::optional<double>()}) {
    Net alone(momentum);
    train(alone, 0, 9, [&](const auto& x) { return alone(x); }, [](const auto&) {});
    run_ranks(3, [&](const Group& group) {
      Net net(momentum);
      const SyncBatchNorm synchronized(*net, group);
      const std::array<std::int64_t, 4> bounds = {0, 4, 6, 9};
      const auto first = bounds[static_cast<std::size_t>(group.rank())];
      const auto count = bounds[static_cast<std::size_t>(group.rank()) + 1] - first;
      train(
          net, first, count, [&](const auto& x) { return net(x); },
          [&](const auto& gradient) { comm::all_reduce(gradient, group); });
      synchronized.check();
      expect_same_state(net, alone, 1e-12);
    });
  }
}

TEST(SyncBatchNorm, RunsWhatCanBeCalledDirectly) {
  run_ranks(2, [](const Group& group) {
    const auto exchange = [&](const auto& gradient) { comm::all_reduce(gradient, group); };
    Net direct;
    const auto call = [&](auto layer, const torch::Tensor& x) {
      layer->num_batches_tracked += 1;
      return synchronized_batch_norm(x, layer->weight, layer->bias, layer->running_mean,
                                     layer->running_var, 0.1, layer->options.eps(), group);
    };
    const auto forward = [&](const torch::Tensor& batch) {
      const torch::Tensor x = torch::relu(call(direct->images, direct->convolution(batch)));
      return call(direct->features, direct->linear(x.flatten(1)));
    };
    train(direct, 4L * group.rank(), 4, forward, exchange);
    Net net;
    const SyncBatchNorm synchronized(*net, group);
    train(net, 4L * group.rank(), 4, [&](const auto& x) { return net(x); }, exchange);
    expect_same_state(net, direct, 0);
  });
}

TEST(SyncBatchNorm, LeavesEvalModeAndOtherModulesAlone) {
  run_ranks(2, [](const Group& group) {
    Net net;
    Net plain;
    const SyncBatchNorm synchronized(*net, group);
    const torch::Tensor batch = images(4L * group.rank(), 4, 0);
    net->eval();
    plain->eval();
    EXPECT_TRUE(at::equal(net(batch), plain(batch)));
    net->train();
    plain->train();
    EXPECT_FALSE(at::equal(net(batch), plain(batch)));
    if (group.rank() == 0) {
      Net other;  // were it synchronized, it would wait for the others
      EXPECT_TRUE(at::equal(other(batch), Net()(batch)));
    }
  });
}

TEST(SyncBatchNorm, LeavesPlainModulesBehind) {
  run_ranks(2, [](const Group& group) {
    Net net;
    {
      const SyncBatchNorm synchronized(*net, group);
      EXPECT_TRUE(net->images->running_mean.key_set().has(c10::DispatchKey::DeferredInit));
    }
    for (const torch::Tensor& buffer : net->buffers()) {
      EXPECT_FALSE(buffer.key_set().has(c10::DispatchKey::DeferredInit));
    }
    Net plain;
    const auto nothing = [](const auto&) {};
    train(net, 4L * group.rank(), 4, [&](const auto& x) { return net(x); }, nothing);
    train(plain, 4L * group.rank(), 4, [&](const auto& x) { return plain(x); }, nothing);
    expect_same_state(net, plain, 0);
  });
}

TEST(SyncBatchNorm, DoesNothingOnAGroupOfOne) {
  Net net;
  Net plain;
  const SyncBatchNorm synchronized(*net, Group::self());
  const auto nothing = [](const auto&) {};
  train(net, 0, 4, [&](const auto& x) { return net(x); }, nothing);
  train(plain, 0, 4, [&](const auto& x) { return plain(x); }, nothing);
  expect_same_state(net, plain, 0);
}

TEST(SyncBatchNorm, LetsOtherOperatorsTakeItsTensors) {
  run_ranks(2, [](const Group& group) {
    Net net;
    const SyncBatchNorm synchronized(*net, group);
    const torch::Tensor& mean = net->images->running_mean;
    EXPECT_TRUE(at::equal(mean.clone(), mean));
    const torch::NoGradGuard no_grad;
    net->images->running_mean.fill_(3);
    EXPECT_EQ(mean.sum().item<double>(), 12);
    std::stringstream stream;
    torch::save(net, stream);
    Net loaded;
    torch::load(loaded, stream);
    EXPECT_EQ(loaded->images->running_mean.sum().item<double>(), 12);
  });
}

TEST(SyncBatchNorm, RecognisesModulesWithoutRunningStatisticsInAnyMode) {
  namespace nn = torch::nn;
  const torch::Tensor whole = random_tensor({8, 3, 2, 2, 2}, at::kDouble, 1);
  nn::BatchNorm3d alone(nn::BatchNormOptions(3).track_running_stats(false));
  alone->to(at::kDouble);
  const torch::Tensor expected = alone(whole);
  run_ranks(2, [&](const Group& group) {
    nn::BatchNorm3d layer(nn::BatchNormOptions(3).track_running_stats(false));
    layer->to(at::kDouble);
    const SyncBatchNorm synchronized(*layer, group);
    for (const bool training : {true, false}) {
      layer->train(training);
      expect_close(layer(whole.narrow(0, 4L * group.rank(), 4)),
                   expected.narrow(0, 4L * group.rank(), 4), 1e-12, "output");
    }
  });
}

TEST(SyncBatchNorm, CountsASharedModuleOnce) {
  run_ranks(2, [](const Group& group) {
    struct : torch::nn::Module {
    } module;
    const torch::nn::BatchNorm1d shared(3);
    module.register_module("first", shared);
    module.register_module("second", shared);
    const SyncBatchNorm synchronized(module, group);
    synchronized.check();
  });
}

std::atomic<int> num_hook_calls = 0;

TEST(SyncBatchNorm, CallsTheHookWithWeightAndBiasBeforeItReadsThem) {
  num_hook_calls = 0;
  detail::set_before_batch_norm([](const at::Tensor& parameter) {
    EXPECT_EQ(parameter.numel(), 4);
    ++num_hook_calls;
  });
  run_ranks(2, [](const Group& group) {
    torch::nn::BatchNorm1d layer(4);
    const SyncBatchNorm synchronized(*layer, group);
    layer(random_tensor({3, 4}, at::kFloat, 1));
    layer->eval();
    layer(random_tensor({3, 4}, at::kFloat, 1));
  });
  detail::set_before_batch_norm(nullptr);
  EXPECT_EQ(num_hook_calls, 2 * 2 * 2);
}

// What is refused.

std::vector<std::string> usage_errors(int size, const std::function<void(Group)>& body) {
  std::vector<std::string> messages;
  for (const std::exception_ptr& thrown : run_ranks_catching(size, body)) {
    messages.push_back(message_of<UsageError>(thrown));
  }
  return messages;
}

TEST(SyncBatchNormRefuses, ModulesByWhichNothingCanBeRecognised) {
  const auto messages = usage_errors(2, [](const Group& group) {
    namespace nn = torch::nn;
    const auto options = nn::BatchNormOptions(3).affine(false).track_running_stats(false);
    nn::ModuleList net(nn::Linear(3, 3), nn::ModuleList(nn::BatchNorm1d(options)));
    const SyncBatchNorm synchronized(*net, group);
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("'1.0'"), HasSubstr("affine(true)")));
  }
}

TEST(SyncBatchNormRefuses, ModulesThatDifferBetweenRanks) {
  for (const std::string& message : usage_errors(2, [](const Group& group) {
         torch::nn::Sequential net(torch::nn::BatchNorm2d(group.rank() == 0 ? 4 : 5));
         const SyncBatchNorm synchronized(*net, group);
       })) {
    EXPECT_THAT(message, AllOf(HasSubstr("batch norm"), HasSubstr("0 [4]"), HasSubstr("0 [5]")));
  }
}

TEST(SyncBatchNormRefuses, ASecondOne) {
  for (const std::string& message : usage_errors(2, [](const Group& group) {
         torch::nn::Sequential net(torch::nn::BatchNorm2d(4));
         const SyncBatchNorm first(*net, group);
         const SyncBatchNorm second(*net, group);
       })) {
    EXPECT_THAT(message, HasSubstr("'0' is synchronized already"));
  }
}

TEST(SyncBatchNormRefuses, ModulesThatWereMoved) {
  for (const std::string& message : usage_errors(2, [](const Group& group) {
         torch::nn::Sequential net(torch::nn::BatchNorm2d(4));
         const SyncBatchNorm synchronized(*net, group);
         EXPECT_NO_THROW(synchronized.check());
         net->to(at::kDouble);
         synchronized.check();
       })) {
    EXPECT_THAT(message, HasSubstr("'0' is not synchronized any more"));
  }
}

TEST(SyncBatchNormRefuses, OneValuePerChannelOverAllRanks) {
  for (const std::string& message : usage_errors(3, [](const Group& group) {
         const std::int64_t count = group.rank() == 1 ? 1 : 0;
         synchronized_batch_norm(at::zeros({count, 4}), {}, {}, {}, {}, 0.1, 1e-5, group, "a.b");
       })) {
    EXPECT_THAT(message, AllOf(HasSubstr("batch norm a.b"),
                               HasSubstr("expected more than 1 value per channel when training")));
  }
}

TEST(SyncBatchNormRefuses, WhatDoesNotFitOnOneRank) {
  const std::vector<torch::Tensor> unfit = {at::zeros({3, 5}), at::zeros({4}),
                                            at::zeros({3, 4}, at::kLong)};
  for (const torch::Tensor& input : unfit) {
    const auto messages = usage_errors(2, [&](const Group& group) {
      synchronized_batch_norm(group.rank() == 0 ? at::zeros({3, 4}) : input, at::ones({4}), {}, {},
                              {}, 0.1, 1e-5, group, "a");
    });
    EXPECT_THAT(messages[0], HasSubstr("does not fit it on rank 1"));
    EXPECT_THAT(messages[1], HasSubstr("batch norm a was given an input "));
  }
  for (const std::string& message : usage_errors(2, [](const Group& group) {
         synchronized_batch_norm(at::zeros({3, 4}), at::ones({4}), at::ones({5}), {}, {}, 0.1, 1e-5,
                                 group);
       })) {
    EXPECT_THAT(message, HasSubstr("[5] beside one of 4 channels"));
  }
}

TEST(SyncBatchNormRefuses, LayersInAnotherOrder) {
  const auto messages = usage_errors(2, [](const Group& group) {
    struct NetOfTwo : torch::nn::Module {
      torch::nn::BatchNorm1d first = register_module("first", torch::nn::BatchNorm1d(4));
      torch::nn::BatchNorm1d second = register_module("second", torch::nn::BatchNorm1d(4));
    } net;
    const SyncBatchNorm synchronized(net, group);
    (group.rank() == 0 ? net.first : net.second)(random_tensor({3, 4}, at::kFloat, 1));
  });
  EXPECT_THAT(messages[0], HasSubstr("rank 0 runs batch norm first while rank 1 runs another"));
  EXPECT_THAT(messages[1], HasSubstr("rank 1 runs batch norm second while rank 0 runs another"));
}

TEST(SyncBatchNormRefuses, LayersOfAnotherSize) {
  const auto thrown = run_ranks_catching(2, [](const Group& group) {
    const auto weight = at::ones({group.rank() == 0 ? 4 : 5});
    synchronized_batch_norm(at::ones({3, weight.numel()}), weight, {}, {}, {}, 0.1, 1e-5, group);
  });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(message_of<CommError>(exception), HasSubstr("the ranks make different calls"));
  }
}

TEST(SyncBatchNormRefuses, BackwardThroughLayersInAnotherOrder) {
  const auto messages = usage_errors(2, [](const Group& group) {
    const torch::Tensor x = random_tensor({3, 4}, at::kFloat, 1).set_requires_grad(true);
    const auto a = synchronized_batch_norm(x, {}, {}, {}, {}, 0.1, 1e-5, group, "a");
    const auto b = synchronized_batch_norm(x, {}, {}, {}, {}, 0.1, 1e-5, group, "b");
    (group.rank() == 0 ? a : b).sum().backward();
  });
  EXPECT_THAT(messages[0], HasSubstr("rank 0 runs backward through batch norm a"));
  EXPECT_THAT(messages[1], HasSubstr("rank 1 runs backward through batch norm b"));
}

TEST(SyncBatchNormRefuses, GradientsOnSomeRanksAlone) {
  for (const std::string& message : usage_errors(3, [](const Group& group) {
         const auto input = at::ones({3, 4}).set_requires_grad(group.rank() != 1);
         synchronized_batch_norm(input, at::ones({4}), {}, {}, {}, 0.1, 1e-5, group, "a");
       })) {
    EXPECT_THAT(message, AllOf(HasSubstr("batch norm a requires a gradient on rank "),
                               HasSubstr("not on rank 1")));
  }
}

TEST(SyncBatchNormRefuses, SecondDerivatives) {
  for (const std::string& message : usage_errors(2, [](const Group& group) {
         const auto input = random_tensor({3, 4}, at::kDouble, 1).set_requires_grad(true);
         const auto output = synchronized_batch_norm(input, {}, {}, {}, {}, 0.1, 1e-5, group, "a");
         torch::autograd::grad({output.square().sum()}, {input}, {}, {}, /*create_graph=*/true);
       })) {
    EXPECT_THAT(message, AllOf(HasSubstr("batch norm a"), HasSubstr("create_graph")));
  }
}

}  // namespace
}  // namespace trireme
