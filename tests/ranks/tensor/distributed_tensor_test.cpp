// SPDX-License-Identifier: Apache-2.0
// Distributed tensors end to end: a small model whose parameters are cut gives the values and
// gradients of one process.
#include <trireme/tensor/distributed_tensor.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <mutex>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::usage_error;
using ::testing::HasSubstr;
using testing::run_ranks;

// Two layers, the first cut by columns, the second by rows, as Megatron-LM does.
struct PerceptronImpl : torch::nn::Module {
  PerceptronImpl()
      : up(register_module("up", torch::nn::Linear(6, 10))),
        down(register_module("down", torch::nn::Linear(10, 4))) {}
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::gelu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Perceptron);

// Ranks are threads, and share the generator.
Perceptron seeded() {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  torch::manual_seed(7);
  return Perceptron();
}

void cut(Perceptron& model, const DeviceMesh& mesh) {
  distribute_in_place(model->up->weight, Layout(mesh, {Shard{0}}));
  distribute_in_place(model->up->bias, Layout(mesh, {Shard{0}}));
  distribute_in_place(model->down->weight, Layout(mesh, {Shard{1}}));
  distribute_in_place(model->down->bias, Layout(mesh, {Replicate{}}));
}

TEST(DistributedTensor, NamesTheOperatorWhoseShapesDoNotFit) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto cut = distribute(torch::ones({4, 6}), Layout(mesh, {Shard{0}}));
    try {
      cut.mm(distribute(torch::ones({5, 2}), Layout(mesh, {Replicate{}})));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("(in operator aten::mm on Float [4, 6], Float [5, 2])"));
    }
  });
}

TEST(DistributedTensor, GivesBackWhatWasDistributed) {
  run_ranks(3, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 3}});
    const auto plain = torch::arange(28).reshape({4, 7}).to(torch::kFloat);
    for (const Placement placement :
         {Placement(Replicate{}), Placement(Shard{0}), Placement(Shard{1}), Placement(Partial{})}) {
      const auto tensor = distribute(plain, Layout(mesh, {placement}));
      EXPECT_TRUE(has_layout(tensor));
      EXPECT_EQ(tensor.sizes(), plain.sizes());
      EXPECT_TRUE(torch::equal(full(tensor), plain)) << describe(tensor);
    }
  });
}

TEST(DistributedTensor, TrainsAModelCutByColumnsAndRows) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [ranks](const comm::Group& group) {
      const DeviceMesh mesh(group, {{"tensor", ranks}});
      auto plain = seeded();
      auto model = seeded();
      cut(model, mesh);
      torch::optim::Adam plain_optimizer(plain->parameters());
      torch::optim::Adam optimizer(model->parameters());
      const auto x = torch::sin(torch::arange(30).reshape({5, 6}).to(torch::kFloat));
      for (int step = 0; step < 3; ++step) {
        const auto expected = plain->forward(x).square().mean();
        const auto loss = model->forward(x).square().mean();
        plain_optimizer.zero_grad();
        optimizer.zero_grad();
        expected.backward();
        loss.backward();
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
        const auto parameters = model->parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const auto gradient = full(parameters[i].grad());
          EXPECT_TRUE(torch::allclose(gradient, plain->parameters()[i].grad(), 1e-5, 1e-6))
              << describe(parameters[i]) << "\n"
              << gradient << plain->parameters()[i].grad();
        }
        plain_optimizer.step();
        optimizer.step();
      }
      const auto parameters = model->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(
            torch::allclose(full(parameters[i].detach()), plain->parameters()[i], 1e-4, 1e-5));
      }
    });
  }
}

TEST(DistributedTensor, WhatIsRedistributedHasMemoryOfItsOwn) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto tensor = distribute(torch::zeros({4}), Layout(mesh, {Replicate{}}));
    auto part = shard(tensor, Layout(mesh, {Shard{0}}));
    auto whole = full(tensor);
    part.add_(1);
    whole.add_(1);
    EXPECT_TRUE(torch::equal(to_local(tensor), torch::zeros({4})));
    EXPECT_TRUE(torch::equal(full(part), torch::ones({4})));
  });
}

// A part with a dim of size one says nothing of the order of dims.
TEST(DistributedTensor, HasTheSameStridesOnAllRanks) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto plain = torch::arange(12).reshape({3, 4}).t();
    const auto tensor = distribute(plain, Layout(mesh, {Shard{1}}));
    EXPECT_EQ(tensor.strides(), plain.strides());
    EXPECT_TRUE(torch::equal(full(tensor.reshape({12})), plain.reshape({12})));
    const auto parameter = torch::ones({3, 4}).t().clone().requires_grad_();
    distribute_in_place(parameter, Layout(mesh, {Shard{1}}));
    (parameter * 2).sum().backward();
    EXPECT_TRUE(torch::equal(full(parameter.grad()), torch::full({4, 3}, 2.0F)));
  });
}

TEST(DistributedTensor, PlainOutsAndOtherMeshesAreErrors) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const DeviceMesh other(group, {{"other", 2}});
    const auto tensor = distribute(torch::ones({4, 4}), Layout(mesh, {Replicate{}}));
    auto plain = torch::empty({4, 4});
    EXPECT_THAT(usage_error([&] { torch::mm_out(plain, tensor, tensor); }),
                HasSubstr("would write distributed values into a plain tensor of [4, 4]"));
    const auto elsewhere = distribute(torch::ones({4, 4}), Layout(other, {Replicate{}}));
    EXPECT_THAT(usage_error([&] { return tensor + elsewhere; }),
                HasSubstr("was given tensors of two meshes"));
  });
}

TEST(DistributedTensor, PlainParametersBesideDistributedOnesAreAnError) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto tensor = distribute(torch::ones({4, 4}), Layout(mesh, {Shard{0}}));
    const auto parameter = torch::ones({4, 4}, torch::requires_grad());
    EXPECT_THAT(usage_error([&] { return tensor + parameter; }),
                HasSubstr("mixes distributed tensors with a plain tensor of [4, 4] that requires a "
                          "gradient"));
    auto written = torch::zeros({4, 4});
    EXPECT_THAT(usage_error([&] { written.add_(tensor); }),
                HasSubstr("would write distributed values into a plain tensor of [4, 4]"));
  });
}

}  // namespace
}  // namespace trireme
