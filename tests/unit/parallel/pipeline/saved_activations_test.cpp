// SPDX-License-Identifier: Apache-2.0
// What a function has kept for backward, in host memory for a while. The processor is the device.
#include <trireme/parallel/pipeline/offload/saved_activations.h>

#include <trireme/base/error.h>
#include <trireme/parallel/recompute.h>
#include <trireme/parallel/recompute/effects.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::pipeline {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

SavedActivations::Memories memories_of(const Tensors& tensors) {
  SavedActivations::Memories all;
  for (const at::Tensor& tensor : tensors) all.insert(detail::memory_below(tensor));
  return all;
}

Tensors leaves(const std::vector<std::vector<std::int64_t>>& sizes, at::ScalarType dtype) {
  torch::manual_seed(7);
  Tensors all;
  for (const auto& shape : sizes) {
    all.push_back(torch::rand(shape, torch::TensorOptions(dtype)).requires_grad_());
  }
  return all;
}

Tensors gradients_of(const Tensors& leaves) {
  Tensors all;
  for (const at::Tensor& leaf : leaves) {
    all.push_back(leaf.grad());
    leaf.mutable_grad().reset();
  }
  return all;
}

// Backward of a function that is kept in host memory between; and what there is of that.
std::int64_t expect_same_gradients(const Tensors& leaves, const Function& function) {
  function(leaves).backward();
  const Tensors expected = gradients_of(leaves);
  HostCopies copies(at::kCPU);
  std::int64_t bytes = 0;
  for (int step = 0; step < 3; ++step) {
    SavedActivations memory(copies, "the test");
    at::Tensor loss;
    {
      const SavedActivations::Collecting collecting(memory);
      loss = function(leaves);
    }
    memory.sort(memories_of(leaves), {});
    memory.begin();
    memory.offload();
    EXPECT_TRUE(memory.load().empty());
    memory.wait_until_loaded();
    loss.backward();
    const Tensors own = gradients_of(leaves);
    for (std::size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(torch::equal(own[i], expected[i]));
    if (step > 0) {
      EXPECT_EQ(copies.num_bytes(), bytes);
    }
    bytes = copies.num_bytes();
  }
  return bytes;
}

TEST(SavedActivations, IsMovedOnceHoweverManyViewsWereSaved) {
  const Tensors parameters = leaves({{8, 5}, {5, 6}}, torch::kFloat);
  c10::weak_intrusive_ptr<c10::StorageImpl> hidden_memory(
      torch::empty({0}).storage().getWeakStorageImpl());
  const Function function = [&](const Tensors& in) {
    const at::Tensor hidden = torch::tanh(torch::matmul(in[0], in[1]));  // [8, 6]
    hidden_memory = hidden.storage().getWeakStorageImpl();
    const at::Tensor part = hidden.t().narrow(0, 1, 3).narrow(1, 2, 4);  // strides and an offset
    return (part * hidden.narrow(0, 0, 3).narrow(1, 0, 4) * hidden.select(1, 5).narrow(0, 0, 4))
        .sum();
  };
  // hidden, and the first product, which the second multiplication has saved
  EXPECT_EQ(expect_same_gradients(parameters, function), (8 * 6 + 3 * 4) * 4);

  HostCopies copies(at::kCPU);
  SavedActivations memory(copies, "the test");
  at::Tensor loss;
  {
    const SavedActivations::Collecting collecting(memory);
    loss = function(parameters);
  }
  memory.sort(memories_of(parameters), {});
  EXPECT_FALSE(hidden_memory.expired());
  memory.begin();
  EXPECT_FALSE(hidden_memory.expired());
  EXPECT_EQ(memory.offload().size(), 2U);
  EXPECT_TRUE(hidden_memory.expired());
  memory.load();
  memory.wait_until_loaded();
  loss.backward();
}

TEST(SavedActivations, KeepsWhatATensorIsBesideItsMemory) {
  // Conjugates and negatives are bits of a tensor over the same memory.
  expect_same_gradients(leaves({{4, 4}, {4, 4}}, torch::kComplexFloat), [](const Tensors& in) {
    const at::Tensor product = torch::matmul(in[0], in[1]);
    const at::Tensor both = torch::matmul(product.conj(), torch::sin(product).t());
    return torch::real(both * torch::_neg_view(both)).sum();
  });
  // Memory formats, and integers.
  expect_same_gradients(leaves({{2, 4, 6, 6}}, torch::kFloat), [](const Tensors& in) {
    const at::Tensor x = torch::relu(in[0].contiguous(torch::MemoryFormat::ChannelsLast));
    return torch::max_pool2d(x * x, 2).square().sum();
  });
}

TEST(SavedActivations, LeavesWhatLastsLonger) {
  const Tensors parameters = leaves({{3, 3}}, torch::kFloat);
  const at::Tensor table = torch::rand({3, 3});
  HostCopies copies(at::kCPU);
  SavedActivations memory(copies, "the test");
  at::Tensor loss;
  {
    const SavedActivations::Collecting collecting(memory);
    loss = (parameters[0].t() * table.select(0, 1) * parameters[0]).sum();
  }
  memory.sort(memories_of({parameters[0], table}), {});
  memory.begin();
  memory.offload();
  EXPECT_EQ(copies.num_bytes(), 9 * 4);  // the first product alone
  memory.load();
  memory.wait_until_loaded();
  loss.backward();
}

TEST(SavedActivations, SaysWhereInputsAreAgain) {
  const Tensors parameters = leaves({{3, 3}}, torch::kFloat);
  const at::Tensor input = torch::rand({4, 3});
  HostCopies copies(at::kCPU);
  SavedActivations memory(copies, "the test");
  const std::shared_ptr<SavedActivations::Kept> kept = memory.keep(input);
  at::Tensor loss;
  {
    const SavedActivations::Collecting collecting(memory);
    loss = torch::matmul(input, parameters[0]).square().sum();
  }
  memory.sort(memories_of(parameters), memories_of({input}));
  memory.begin();
  EXPECT_EQ(memory.offload().size(), 1U);  // the square's argument
  EXPECT_THROW(kept->tensor(), InternalError);
  const std::vector<const void*> inputs = memory.load();
  memory.wait_until_loaded();
  ASSERT_EQ(inputs.size(), 1U);
  EXPECT_EQ(inputs[0], kept->tensor().data_ptr());
  EXPECT_NE(inputs[0], input.data_ptr());
  EXPECT_TRUE(torch::equal(kept->tensor(), input));
  loss.backward();
}

// A function that is computed again keeps its inputs, and copies of memory that it writes to.
TEST(SavedActivations, HasWhatARecomputedFunctionKeeps) {
  const Tensors parameters = leaves({{6, 4}, {4}, {4}}, torch::kFloat);
  const at::Tensor mean = torch::zeros({4});
  const at::Tensor variance = torch::ones({4});
  const auto run = [&](bool offloads) {
    mean.zero_();
    variance.fill_(1);
    HostCopies copies(at::kCPU);
    SavedActivations memory(copies, "the test");
    at::Tensor loss;
    {
      const SavedActivations::Collecting collecting(memory);
      const at::Tensor input = torch::tanh(parameters[0]);
      const OneToOne function = [&](const at::Tensor& x) {
        return torch::batch_norm(x, parameters[1], parameters[2], mean, variance, /*training=*/true,
                                 0.1, 1e-5, false);
      };
      RecomputeOptions options;
      options.keep_between_passes = true;
      loss = recompute(function, input, options).square().sum();
    }
    memory.sort(memories_of({parameters[0], parameters[1], parameters[2], mean, variance}), {});
    if (offloads) {
      memory.begin();
      // tanh's result is the input; the square's argument; running mean and variance
      EXPECT_EQ(memory.offload().size(), 4U);
      EXPECT_EQ(copies.num_bytes(), (2 * 24 + 2 * 4) * 4);
      memory.load();
      memory.wait_until_loaded();
    }
    loss.backward();
    return gradients_of(parameters);
  };
  const Tensors expected = run(false);
  const Tensors own = run(true);
  for (std::size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(torch::equal(own[i], expected[i]));
}

TEST(SavedActivations, RefusesBackwardFromWhatWasWrittenTo) {
  const Tensors parameters = leaves({{3, 3}}, torch::kFloat);
  HostCopies copies(at::kCPU);
  SavedActivations memory(copies, "the test");
  at::Tensor loss;
  {
    const SavedActivations::Collecting collecting(memory);
    const at::Tensor hidden = torch::tanh(parameters[0]);
    hidden.mul_(2);
    loss = hidden.sum();
  }
  memory.sort(memories_of(parameters), {});
  memory.begin();
  memory.offload();
  memory.load();
  memory.wait_until_loaded();
  EXPECT_THAT(test::message_of<UsageError>([&] { loss.backward(); }),
              HasSubstr("a tensor [3, 3] Float that backward needs of the test was written to"));
}

}  // namespace
}  // namespace trireme::pipeline
