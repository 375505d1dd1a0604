// SPDX-License-Identifier: Apache-2.0
// The same computation with and without recomputation.
#pragma once

#include <trireme/parallel/recompute.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace trireme::test {

using Tensors = std::vector<torch::Tensor>;

/// Calls a function, as it is or to be recomputed.
class Caller {
 public:
  explicit Caller(bool is_recomputed) : is_recomputed_(is_recomputed) {}

  Tensors operator()(const ManyToMany& function, const Tensors& inputs) const {
    return is_recomputed_ ? recompute(function, inputs) : function(inputs);
  }
  torch::Tensor operator()(const OneToOne& function, const torch::Tensor& input) const {
    return is_recomputed_ ? recompute(function, input) : function(input);
  }

 private:
  bool is_recomputed_;
};

/// Bit by bit; what is undefined in one is so in the other.
inline bool same(const torch::Tensor& a, const torch::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.equal(b);
}

/// Runs `computation` both ways, each with the same random numbers, and compares what it returns
/// and the numbers that come after it.
inline void expect_same(const std::function<Tensors(const Caller&)>& computation) {
  Tensors ends[2];
  for (const bool is_recomputed : {false, true}) {
    torch::manual_seed(5);
    ends[is_recomputed] = computation(Caller(is_recomputed));
    ends[is_recomputed].push_back(torch::rand({4}));
  }
  ASSERT_EQ(ends[0].size(), ends[1].size());
  for (std::size_t i = 0; i < ends[0].size(); ++i) {
    EXPECT_TRUE(same(ends[0][i], ends[1][i])) << "tensor " << i << " of what it returned";
  }
}

/// Gradients of the module's parameters, after those of `tensors`; and the module's buffers.
inline Tensors state_after(const Tensors& tensors, const torch::nn::Module& module) {
  Tensors all;
  for (const torch::Tensor& tensor : tensors) all.push_back(tensor.grad());
  for (const torch::Tensor& parameter : module.parameters()) all.push_back(parameter.grad());
  for (const torch::Tensor& buffer : module.buffers()) all.push_back(buffer.clone());
  return all;
}

inline torch::Tensor leaf(torch::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

}  // namespace trireme::test
