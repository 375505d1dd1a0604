// SPDX-License-Identifier: Apache-2.0
// What goes with training on accelerators: comm hooks, local SGD, mixed precision, recomputation of
// random operators, and a device whose memory is full.
#include <trireme/data/data_loader.h>
#include <trireme/optim/autocast.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/parallel/comm_hooks.h>
#include <trireme/parallel/local_sgd.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/recompute.h>
#include <trireme/parallel/training_step.h>
#include <trireme/train/losses.h>
#include <trireme/train/model.h>

#include <ATen/Context.h>
#include <tests/ranks/devices/test_device.h>
#include <tests/ranks/small_net.h>

#include <functional>
#include <memory>
#include <vector>

namespace trireme {
namespace {

using comm::Group;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::Net;
using testing::name_of_way;
using testing::OnDevices;
using testing::test_device;

std::vector<torch::Tensor> parameters_of(const Net& net) {
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& parameter : net->parameters()) values.push_back(parameter.clone());
  return values;
}

class TrainingOnDevices : public OnDevices {
 protected:
  // Trains with gradients that the hook exchanges.
  static void compare_hook(const std::function<std::shared_ptr<CommHook>()>& make_hook) {
    compare_with_cpu(3, [&](const Group& group, at::Device device) {
      Net net = make_net(1);
      net->to(device);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      auto parallel = parallelize(*net, {}, group);
      parallel.register_comm_hook(make_hook());
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        loss_of(net, make_batch(step, group.rank()).to(device)).backward();
        optimizer.step();
      }
      return parameters_of(net);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(, TrainingOnDevices, ::testing::Bool(), name_of_way);

TEST_P(TrainingOnDevices, CompressesByPowerSgd) {
  compare_hook([] {
    return std::make_shared<PowerSgdCommHook>(
        PowerSgdOptions{.rank = 2, .start_iteration = 1, .min_compression_rate = 1});
  });
}

TEST_P(TrainingOnDevices, CompressesByTopK) {
  compare_hook([] { return std::make_shared<TopKCommHook>(TopKOptions{.fraction = 0.3}); });
}

TEST_P(TrainingOnDevices, AveragesParametersOfLocalSteps) {
  compare_with_cpu(2, [](const Group& group, at::Device device) {
    Net net = make_net(1);
    net->to(device);
    LocalSgd local(*net, {.period = 2, .warm_up = 1}, group);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      loss_of(net, make_batch(step, group.rank()).to(device)).backward();
      optimizer.step();
      local.step();
    }
    return parameters_of(net);
  });
}

TEST_P(TrainingOnDevices, AccumulatesGradientsWithoutExchange) {
  compare_with_cpu(2, [](const Group& group, at::Device device) {
    Net net = make_net(1);
    net->to(device);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    auto parallel = parallelize(*net, {}, group);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      {
        const auto alone = parallel.no_sync();
        loss_of(net, make_batch(2 * step, group.rank()).to(device)).backward();
      }
      loss_of(net, make_batch(2 * step + 1, group.rank()).to(device)).backward();
      optimizer.step();
    }
    return parameters_of(net);
  });
}

// Ranks that share a device would take turns at its generator.
TEST_P(TrainingOnDevices, RecomputesDropoutWithTheSameNumbers) {
  const at::Device device = test_device(0);
  const auto gradients = [&](bool is_recomputed) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    generator.set_current_seed(5);
    Net net = make_net(1);
    net->to(device);
    const OneToOne hidden = [&](const torch::Tensor& x) {
      return torch::dropout(torch::relu(net->first(x)), 0.5, true);
    };
    const torch::Tensor input =
        make_batch(0, 0).to(device).flatten(1).repeat({1, 3}).narrow(1, 0, 144);
    const torch::Tensor output = is_recomputed ? recompute(hidden, input) : hidden(input);
    torch::dropout(output, 0.5, true).square().sum().backward();
    return net->first->weight.grad().clone();
  };
  const torch::Tensor expected = gradients(false);
  EXPECT_GT(expected.abs().sum().item<float>(), 0);
  EXPECT_TRUE(torch::equal(gradients(true), expected));
}

struct PositionsImpl : torch::nn::Module {
  PositionsImpl() {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      const auto numbers = torch::arange(parameter.numel(), torch::kFloat);
      parameter.copy_((numbers * 0.37).sin().reshape(parameter.sizes()));
    }
  }
  torch::Tensor loss(const torch::Tensor& tokens) {
    const auto places = torch::arange(tokens.size(1), tokens.options());
    const auto scores = head(torch::relu(hidden(token(tokens) + position(places))));
    return torch::cross_entropy_loss(scores.flatten(0, 1), tokens.flatten());
  }
  torch::nn::Embedding token = register_module("token", torch::nn::Embedding(10, 8));
  torch::nn::Embedding position = register_module("position", torch::nn::Embedding(6, 8));
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(8, 8));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 10));
};
TORCH_MODULE(Positions);

torch::Tensor part_of(int step, int part) {
  return (torch::arange(4 * 6).reshape({4, 6}) * (step + 3 + part)).remainder(10);
}

TEST_P(TrainingOnDevices, RecordsOperatorsThatMakeTensors) {
  for (const int stages : {1, 2}) {
    compare_with_cpu(2, [&](const Group& group, at::Device device) {
      Positions net;
      net->to(device);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
      TrainingStep training(
          *net,
          [&](const std::vector<torch::Tensor>& batch) -> std::vector<torch::Tensor> {
            return {net->loss(batch[0])};
          },
          {.mesh = {{"pipe", stages}, {"data", 2 / stages}}, .micro_batches = 2}, group);
      std::vector<torch::Tensor> values;
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        const auto tokens = part_of(step, stages == 1 ? group.rank() : 0);
        values.push_back(training.step({tokens.to(device)}).loss);
        optimizer.step();
      }
      training.gather_parameters();
      for (const torch::Tensor& parameter : net->parameters()) values.push_back(parameter.clone());
      return values;
    });
  }
}

#ifndef TRIREME_FAKE_DEVICE
// LibTorch has lists of operators to cast for the CPU and CUDA alone.
TEST_P(TrainingOnDevices, TrainsInMixedPrecision) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int zero_level : {0, 2, 3}) {
      run_device_ranks(2, [&](const Group& group, at::Device device) {
        const auto train = [&](const std::vector<int>& parts, const Group& among) {
          Net net = make_net(1);
          net->to(device);
          torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
          auto parallel =
              parallelize(*net, {.zero_level = among.size() > 1 ? zero_level : 0}, among);
          parallel.shard(optimizer);
          LossScale scale({.initial = 64});
          for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad();
            for (const int part : parts) {
              torch::Tensor loss;
              {
                const Autocast autocast(device.type(), type);
                loss = loss_of(net, make_batch(step, part).to(device));
              }
              scale.scale(loss / static_cast<double>(parts.size())).backward();
            }
            EXPECT_TRUE(scale.unscale(optimizer, parallel.sharing()));
            optimizer.step();
          }
          parallel.unshard(optimizer);
          return parameters_of(net);
        };
        const auto got = train({group.rank()}, group);
        // Batch norm sees each part by itself in both.
        const auto expected = train({0, 1}, Group::self());
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-2, 1e-3)) << i;
        }
      });
    }
  }
}

TEST_P(TrainingOnDevices, SaysWhatFillsTheMemory) {
  struct Greedy : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) {
      return torch::linear(x, weight) +
             torch::empty({1L << 46}, x.options()).narrow(0, 0, 3);  // 256 TiB
    }
    torch::Tensor weight = register_parameter("weight", torch::zeros({3, 1 << 18}));
  };
  const auto network = std::make_shared<Greedy>();
  network->to(test_device(0));
  torch::optim::Adam optimizer(network->parameters());
  Model model(network, CrossEntropy(), optimizer);
  data::DataLoader data(data::tensors(
      {{"x", torch::ones({8, 1 << 18})}, {"label", torch::zeros({8}, torch::kLong)}}));
  data.batch(4);
  EXPECT_THAT([&] { model.train(1, data); },
              ::testing::ThrowsMessage<TrainingError>(
                  ::testing::AllOf(::testing::HasSubstr("no memory is left on cuda:0"),
                                   ::testing::HasSubstr("Parameters and buffers hold 3.0 MiB"),
                                   ::testing::HasSubstr("plan.micro_batches"))));
}
#endif

}  // namespace
}  // namespace trireme
