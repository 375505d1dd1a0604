// SPDX-License-Identifier: Apache-2.0
// Modules that cannot be recorded are stages by hand: the program of docs/guide/pipeline.md.
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/training_step.h>
#include <trireme/schedule/generators/generators.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kMicroBatches = 4;
constexpr std::int64_t kSteps = 3;

/// How often it is applied depends on what comes out.
struct BodyImpl : torch::nn::Module {
  BodyImpl() { layer = register_module("layer", torch::nn::Linear(6, 6)); }
  torch::Tensor forward(torch::Tensor x) {
    for (int i = 0; i < 4; ++i) {
      x = torch::tanh(layer(x));
      if (x.abs().mean().item<double>() < 0.3) break;
    }
    return x;
  }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Body);

struct Network {
  Network() {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& weight : body->parameters()) fill(weight);
    for (const torch::Tensor& weight : head->parameters()) fill(weight);
  }
  static void fill(const torch::Tensor& weight) {
    weight.copy_(torch::sin(torch::arange(weight.numel()) * 0.7).view_as(weight) * 0.5);
  }
  Body body;
  torch::nn::Linear head{6, 5};
};

std::vector<std::vector<torch::Tensor>> micro_batches_of(std::int64_t step) {
  std::vector<std::vector<torch::Tensor>> all;
  for (std::int64_t i = 0; i < kMicroBatches; ++i) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(10 * step + i));
    all.push_back({torch::randn({2, 6}, generator), torch::arange(2) + i % 3});
  }
  return all;
}

std::vector<std::pair<std::string, torch::Tensor>> named(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  return all;
}

std::vector<torch::Tensor> train_plainly() {
  Network network;
  std::vector<torch::Tensor> all = network.body->parameters();
  for (const auto& parameter : network.head->parameters()) all.push_back(parameter);
  torch::optim::SGD optimizer(all, 0.1);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (const auto& in : micro_batches_of(step)) {
      torch::cross_entropy_loss(network.head(network.body(in[0])), in[1]).backward();
    }
    for (const auto& parameter : all) parameter.grad().div_(kMicroBatches);
    optimizer.step();
  }
  return test::copies(*network.body);
}

TEST(StagesByHand, HaveTheBitsOfAPlainLoop) {
  const std::vector<torch::Tensor> expected = train_plainly();
  testing::run_ranks(2, [&](const comm::Group& group) {
    Network network;
    pipeline::Program program;
    program.schedule = schedule::one_forward_one_backward(2, kMicroBatches);
    program.inputs = {0, 1};  // rows, labels
    program.boundary_tensors = {{.value = 2, .from = 0, .to = {1}, .shapes = {{.sizes = {2, 6}}}}};
    program.loss = 3;
    program.loss_stage = 1;

    using Tensors = std::vector<torch::Tensor>;
    pipeline::StageCode code{.stage = group.rank()};
    if (group.rank() == 0) {
      code.inputs = {0};
      code.outputs = {2};
      code.parameters = named(*network.body);
      code.forward = [&](c10::ArrayRef<at::Tensor> in, const auto& /*micro_batch*/) -> Tensors {
        return {network.body(in[0])};
      };
    } else {
      code.inputs = {2, 1};
      code.outputs = {3};
      code.parameters = named(*network.head);
      code.forward = [&](c10::ArrayRef<at::Tensor> in, const auto& /*micro_batch*/) -> Tensors {
        return {torch::cross_entropy_loss(network.head(in[0]), in[1])};
      };
    }
    pipeline::Executor executor(program, {code}, group);

    const bool is_first = group.rank() == 0;
    torch::optim::SGD optimizer(is_first ? network.body->parameters() : network.head->parameters(),
                                0.1);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      executor.step(micro_batches_of(step), step);
      optimizer.step();
    }
    if (is_first) {
      EXPECT_TRUE(test::all_equal(test::copies(*network.body), expected));
    }
  });
}

// Which is what the error of the module says, whole.
TEST(StagesByHand, AreTheWayOutThatCaptureNames) {
  testing::run_ranks(2, [](const comm::Group& group) {
    Network network;
    Plan plan{.mesh = {{kStageAxis, 2}}, .micro_batches = 2};
    torch::nn::ModuleDict both;
    both->update({{"body", network.body.ptr()}, {"head", network.head.ptr()}});
    TrainingStep pipeline(
        *both,
        [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
          return {torch::cross_entropy_loss(network.head(network.body(in[0])), in[1])};
        },
        plan, group);
    EXPECT_THAT(test::usage_error([&] { pipeline.step(micro_batches_of(0).front()); }),
                AllOf(HasSubstr("aten::item"), HasSubstr("body"), HasSubstr("stages by hand")));
  });
}

}  // namespace
}  // namespace trireme
