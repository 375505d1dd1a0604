// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism on accelerators, together with data parallelism and ZeRO, against the same on
// the CPU.
#include <models/mixture.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/tensor/distributed_tensor.h>

#include <tests/ranks/devices/test_device.h>
#include <tests/ranks/tensor/language_model.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

using comm::Group;
using test::loss_of;
using test::megatron;
using test::seeded;
using testing::name_of_way;
using testing::OnDevices;
using testing::run_device_ranks;

class TensorParallelOnDevices : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(, TensorParallelOnDevices, ::testing::Bool(), name_of_way);

torch::Tensor tokens_of(int step, int part) {
  return (torch::arange(4 * 6).reshape({4, 6}) * (step + 3 + part)).remainder(10);
}

// In double. The CPU computes a linear layer by one operator, an accelerator by two.
TEST_P(TensorParallelOnDevices, TrainsAsOnTheCpu) {
  for (const int zero_level : {0, 1, 2, 3}) {
    compare_with_cpu(
        4,
        [&](const Group& group, at::Device device) {
          auto model = seeded();
          model->to(device);
          auto parallel = parallelize(*model,
                                      {.mesh = {{"data", 2}, {"tensor", 2}},
                                       .layouts = megatron(),
                                       .bucket_bytes = 1200,
                                       .first_bucket_bytes = 400,
                                       .zero_level = zero_level},
                                      group);
          torch::optim::AdamW optimizer(model->parameters());
          parallel.shard(optimizer);
          std::vector<torch::Tensor> values;
          for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad();
            const auto loss =
                loss_of(model, tokens_of(step, parallel.data_group().rank()).to(device));
            EXPECT_EQ(loss.device(), device);
            loss.backward();
            values.push_back(full(loss.detach()));
            optimizer.step();
          }
          for (const torch::Tensor& parameter : model->parameters()) {
            values.push_back(full(parameter.detach()).clone());
          }
          return values;
        },
        1e-12);
  }
}

struct AttentionImpl : torch::nn::Module {
  AttentionImpl() {
    torch::NoGradGuard no_grad;
    int place = 0;
    for (torch::Tensor& parameter : parameters()) {
      const auto numbers = torch::arange(parameter.numel(), torch::kFloat);
      parameter.copy_((numbers * (0.37 + ++place)).sin().reshape(parameter.sizes()) * 0.3);
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads = [&](const torch::Tensor& t) {
      return t.unflatten(2, {4, 8}).transpose(1, 2);
    };
    const torch::Tensor mixed = torch::scaled_dot_product_attention(
        heads(query(x)), heads(key(x)), heads(value(x)), {}, 0.0, /*is_causal=*/true);
    return out(mixed.transpose(1, 2).flatten(2));
  }
  torch::nn::Linear query = register_module("query", torch::nn::Linear(16, 32));
  torch::nn::Linear key = register_module("key", torch::nn::Linear(16, 32));
  torch::nn::Linear value = register_module("value", torch::nn::Linear(16, 32));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 16));
};
TORCH_MODULE(Attention);

// Each rank has some of the heads. In float, since CUDA's fused kernels take no double.
TEST_P(TensorParallelOnDevices, AttendsAsOnTheCpu) {
  compare_with_cpu(
      2,
      [](const Group& group, at::Device device) {
        Attention attention;
        attention->to(device);
        auto parallel =
            parallelize(*attention,
                        {.mesh = {{"tensor", 2}},
                         .layouts = join({column_parallel("query"), column_parallel("key"),
                                          column_parallel("value"), row_parallel("out")})},
                        group);
        torch::optim::SGD optimizer(attention->parameters(), torch::optim::SGDOptions(0.1));
        std::vector<torch::Tensor> values;
        for (int step = 0; step < 2; ++step) {
          optimizer.zero_grad();
          const auto x = (torch::arange(3 * 5 * 16, torch::kFloat) * (step + 0.7)).cos();
          const auto loss = attention(x.reshape({3, 5, 16}).to(device)).square().mean();
          loss.backward();
          values.push_back(full(loss.detach()));
          optimizer.step();
        }
        for (const torch::Tensor& parameter : attention->parameters()) {
          values.push_back(full(parameter.detach()).clone());
        }
        return values;
      },
      1e-5);
}

// Tokens travel to the ranks of their experts.
TEST_P(TensorParallelOnDevices, MixesExpertsAsOnTheCpu) {
  compare_with_cpu(
      2,
      [](const Group& group, at::Device device) {
        models::MixtureOfExperts mixture(models::MixtureOptions{
            .gpt = {.hidden = 8, .heads = 2}, .experts = 4, .counts_tokens = true});
        {
          const torch::NoGradGuard no_grad;
          int place = 0;
          for (auto& parameter : mixture->parameters()) {
            const auto numbers = torch::arange(parameter.numel(), torch::kDouble);
            const auto values = (numbers * (0.37 + ++place)).sin().reshape(parameter.sizes());
            parameter.set_data(values.to(device));
          }
          for (auto& buffer : mixture->buffers()) buffer.set_data(buffer.to(device));
        }
        const auto parallel = parallelize(
            *mixture, {.mesh = {{"expert", 2}}, .layouts = expert_layouts(*mixture)}, group);
        torch::optim::SGD optimizer(mixture->parameters(), torch::optim::SGDOptions(0.1));
        std::vector<torch::Tensor> values;
        for (int step = 0; step < 2; ++step) {
          optimizer.zero_grad();
          const auto x = (torch::arange(4 * 5 * 8, torch::kDouble) * (step + 0.7)).cos();
          const auto [output, balance_loss] = mixture(x.reshape({4, 5, 8}).to(device));
          const auto loss = output.square().mean() + 0.01 * balance_loss;
          loss.backward();
          values.push_back(full(loss.detach()));
          optimizer.step();
        }
        for (const auto& parameter : mixture->parameters()) {
          values.push_back(full(parameter.detach()).clone());
        }
        for (const auto& buffer : mixture->buffers()) values.push_back(full(buffer).clone());
        return values;
      },
      1e-12);
}

TEST_P(TensorParallelOnDevices, ChangesLayoutsAsOnTheCpu) {
  run_device_ranks(3, [](const Group& group, at::Device device) {
    const DeviceMesh mesh(group, {{"tensor", 3}});
    const torch::Tensor whole = torch::arange(7 * 5, torch::kFloat).reshape({7, 5});
    for (const Placement& from : std::vector<Placement>{Replicate{}, Shard{0}, Shard{1}}) {
      for (const Placement& to : std::vector<Placement>{Replicate{}, Shard{0}, Shard{1}}) {
        const torch::Tensor x = distribute(whole.to(device), Layout(mesh, {from}));
        const torch::Tensor y = redistribute(x, Layout(mesh, {to}));
        EXPECT_EQ(to_local(y).device(), device);
        EXPECT_TRUE(torch::equal(full(y).cpu(), whole));
      }
    }
  });
}

}  // namespace
}  // namespace trireme
