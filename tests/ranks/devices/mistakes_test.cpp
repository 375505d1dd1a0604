// SPDX-License-Identifier: Apache-2.0
// Modules whose layers lie on several devices, and mistakes with devices: what is said, on all
// ranks.
#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/parallel/training_step.h>
#include <trireme/train/losses.h>
#include <trireme/train/model.h>

#include <tests/ranks/devices/test_device.h>
#include <tests/ranks/small_net.h>
#include <tests/temporary_folder.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

using comm::Group;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::message_of;
using test::Net;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_device_ranks;
using testing::test_device;

// Two layers, each on a device of its own; forward moves what travels between them.
struct SplitImpl : torch::nn::Module {
  SplitImpl(at::Device first_device, at::Device second_device)
      : first(register_module("first", torch::nn::Linear(4, 8))),
        second(register_module("second", torch::nn::Linear(8, 3))),
        between(second_device) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      const auto numbers = torch::arange(parameter.numel(), torch::kFloat);
      parameter.copy_((numbers * 0.7).sin().reshape(parameter.sizes()));
    }
    first->to(first_device);
    second->to(second_device);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::relu(first(x)).to(between));
  }
  torch::nn::Linear first, second;
  at::Device between;
};
TORCH_MODULE(Split);

data::DataLoader points(const Group& group) {
  const auto x = torch::arange(16 * 4, torch::kFloat).reshape({16, 4}).mul(0.3).sin();
  data::DataLoader loader(data::tensors({{"x", x}, {"label", x.narrow(1, 0, 3).argmax(1)}}));
  loader.shard({.index = group.rank(), .count = group.size()}).batch(4);
  return loader;
}

std::vector<torch::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& parameter : module.parameters()) {
    values.push_back(parameter.detach().cpu().clone());
  }
  return values;
}

class Devices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::num_test_devices() < 4) GTEST_SKIP() << "needs four devices";
  }
};

// Each rank has two devices.
at::Device device_of(const Group& group, int number) {
  return test_device(2 * group.rank() + number);
}

TEST_F(Devices, OfOneModelTrainByModelAndByDataParallel) {
  for (const int zero_level : {0, 1, 2, 3}) {
    const auto train = [&](const Group& group, at::Device first, at::Device second) {
      Split split(first, second);
      torch::optim::Adam optimizer(split->parameters(), torch::optim::AdamOptions(0.01));
      Model model(split, CrossEntropy(), optimizer,
                  {.group = group, .plan = {.zero_level = zero_level}});
      model.train(2, points(group));
      const double loss = model.evaluate(points(group)).loss;
      auto values = values_of(*split);
      values.push_back(torch::scalar_tensor(loss));
      return values;
    };
    std::vector<std::vector<torch::Tensor>> expected(2);
    testing::run_ranks(2, [&](const Group& group) {
      expected[static_cast<std::size_t>(group.rank())] = train(group, at::kCPU, at::kCPU);
    });
    run_device_ranks(2, [&](const Group& group, at::Device) {
      const auto got = train(group, device_of(group, 0), device_of(group, 1));
      const auto& wanted = expected[static_cast<std::size_t>(group.rank())];
      for (std::size_t i = 0; i < got.size(); ++i) {
        testing::expect_same(got[i], wanted[i], "value " + std::to_string(i));
      }
    });
  }
}

TEST_F(Devices, OfOneModelAreKeptByACheckpoint) {
  const test::TemporaryFolder folder;
  run_device_ranks(2, [&](const Group& group, at::Device) {
    Split split(device_of(group, 0), device_of(group, 1));
    torch::optim::Adam optimizer(split->parameters());
    auto parallel = parallelize(*split, {.zero_level = 2}, group);
    parallel.shard(optimizer);
    split->forward(torch::ones({2, 4}).to(device_of(group, 0))).sum().backward();
    optimizer.step();
    const auto path = save_checkpoint({.folder = folder.path()}, parallel, *split, &optimizer, {});
    const auto saved = values_of(*split);
    Split other(device_of(group, 1), device_of(group, 0));
    torch::optim::Adam its_optimizer(other->parameters());
    auto its_parallel = parallelize(*other, {}, group);
    load_checkpoint(path, its_parallel, *other, &its_optimizer);
    const auto loaded = values_of(*other);
    for (std::size_t i = 0; i < saved.size(); ++i) EXPECT_TRUE(torch::equal(loaded[i], saved[i]));
    EXPECT_EQ(other->first->weight.device(), device_of(group, 1));
  });
}

TEST_F(Devices, OfATrainingStepAreOne) {
  run_device_ranks(2, [](const Group& group, at::Device) {
    Split split(device_of(group, 0), device_of(group, 1));
    const std::string message = message_of<UsageError>([&] {
      const TrainingStep training(
          *split,
          [&](const std::vector<torch::Tensor>& batch) -> std::vector<torch::Tensor> {
            return {split->forward(batch[0]).sum()};
          },
          {.mesh = {{"pipe", 2}}}, group);
    });
    EXPECT_THAT(message, AllOf(HasSubstr("stages of a rank run on one device"),
                               HasSubstr("second.weight on " + device_of(group, 1).str()),
                               HasSubstr("TrainingStepOptions::devices")));
  });
}

TEST_F(Devices, OfATrainingStepsBatchMayDiffer) {
  run_device_ranks(2, [](const Group& group, at::Device device) {
    Net net = make_net(1);
    net->to(device);
    TrainingStep training(
        *net,
        [&](const std::vector<torch::Tensor>& batch) -> std::vector<torch::Tensor> {
          return {loss_of(net, batch[0])};
        },
        {.mesh = {{"pipe", 1}, {"data", 2}}}, group);
    const at::Tensor loss = training.step({make_batch(0, group.rank())}).loss;
    EXPECT_EQ(loss.device(), device);
  });
}

TEST_F(Devices, OfAModuleMustNotChangeAfterParallelize) {
  for (const int zero_level : {0, 2, 3}) {
    run_device_ranks(2, [&](const Group& group, at::Device) {
      Net net = make_net(1);
      net->to(device_of(group, 0));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
      auto parallel = parallelize(*net, {.zero_level = zero_level}, group);
      parallel.shard(optimizer);
      net->to(device_of(group, 1));
      const std::string message = message_of<UsageError>([&] {
        loss_of(net, make_batch(0, group.rank()).to(device_of(group, 1))).backward();
        optimizer.step();
      });
      EXPECT_THAT(message, AllOf(HasSubstr("parameter"), HasSubstr("before parallelize")));
    });
  }
}

TEST_F(Devices, OfAnOptimizersParametersMayChangeBeforeParallelize) {
  run_device_ranks(2, [](const Group& group, at::Device device) {
    Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    net->to(device);
    auto parallel = parallelize(*net, {.zero_level = 2}, group);
    parallel.shard(optimizer);
    const auto before = values_of(*net);
    loss_of(net, make_batch(0, group.rank()).to(device)).backward();
    optimizer.step();
    EXPECT_FALSE(torch::equal(values_of(*net)[0], before[0]));
  });
}

TEST_F(Devices, OfTheModulesOfAllRanksAreOfOneType) {
  testing::run_ranks(2, [](const Group& group) {
    Net net = make_net(1);
    if (group.rank() == 1) net->to(test_device(1));
    const std::string message =
        message_of<UsageError>([&] { const DataParallel parallel(*net, group); });
    EXPECT_THAT(message, AllOf(HasSubstr("parameter"), HasSubstr("cpu")));
  });
}

}  // namespace
}  // namespace trireme
