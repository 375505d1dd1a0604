// SPDX-License-Identifier: Apache-2.0
// A hundred thousand steps take the memory and the decisions of a thousand.
#include <trireme/tensor/dispatch/decision_cache.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/operators/operator_cases.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <vector>

namespace trireme {
namespace {

constexpr int kSteps = 100'000;
constexpr int kWarmUp = 1'000;  // steps after which nothing may grow
constexpr std::int64_t kMostBytes = 2 << 20;

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  statm >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Columns, then rows, of two products; a residual path through views; a hint between them.
struct PerceptronImpl : torch::nn::Module {
  explicit PerceptronImpl(const DeviceMesh& mesh)
      : up(register_module("up", torch::nn::Linear(8, 16))),
        down(register_module("down", torch::nn::Linear(16, 8))),
        whole(Layout::replicated(mesh)) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(test::sample(parameter.sizes(), torch::kFloat) / 8);
    }
    distribute_in_place(up->weight, Layout(mesh, {Shard{0}}));
    distribute_in_place(up->bias, Layout(mesh, {Shard{0}}));
    distribute_in_place(down->weight, Layout(mesh, {Shard{1}}));
    distribute_in_place(down->bias, whole);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = shard(down(torch::gelu(up(x))), whole);
    y.slice(1, 0, 4).mul_(0.5);
    return x + y.view({4, 2, 2, 8}).transpose(1, 2).reshape({8, 2, 8}).flatten(0, 1);
  }
  torch::nn::Linear up, down;
  Layout whole;
};
TORCH_MODULE(Perceptron);

TEST(Memory, DoesNotGrowOverAHundredThousandSteps) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    Perceptron model(mesh);
    torch::optim::AdamW optimizer(model->parameters());
    // A moving average of the parameters, by operators on lists.
    std::vector<torch::Tensor> averages;
    for (const auto& parameter : model->parameters())
      averages.push_back(parameter.detach().clone());
    const auto input = distribute(test::sample({16, 8}, torch::kFloat), Layout::replicated(mesh));
    std::int64_t resident = 0;
    std::int64_t decisions = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (step == kWarmUp) {
        resident = resident_bytes();
        decisions = tensor::num_decisions_made();
      }
      optimizer.zero_grad();
      model->forward(input).square().mean().backward();
      torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      const torch::NoGradGuard no_grad;
      torch::_foreach_mul_(averages, 0.9);
      torch::_foreach_add_(averages, model->parameters(), 0.1);
    }
    EXPECT_EQ(tensor::num_decisions_made(), decisions);
    EXPECT_LT(resident_bytes() - resident, kMostBytes) << "from " << resident;
  });
}

}  // namespace
}  // namespace trireme
