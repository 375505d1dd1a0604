// SPDX-License-Identifier: Apache-2.0
// The weight part of a backward: what operators put off while gradients of inputs are computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::pipeline {

/// Work of one stage and micro-batch. Not thread-safe; backward fills it on one thread at a time.
class WeightGradients {
 public:
  /// Gives the gradients of `weights`, in their order.
  using Compute = std::function<std::vector<at::Tensor>()>;

  /// While it lives, forward on this thread makes nodes that put their weight gradients into
  /// `gradients`; null: none does.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(std::shared_ptr<WeightGradients> gradients);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::shared_ptr<WeightGradients> previous_;
  };

  /// Of the innermost guard of this thread; null where there is none.
  static const std::shared_ptr<WeightGradients>& current() noexcept;

  /// Puts off `compute`. @param weights leaves, defined. @param gradient what `compute` reads; not
  /// defined where it reads none.
  void put_off(std::vector<at::Tensor> weights, at::Tensor gradient, Compute compute);

  /// Whether one of the gradients that wait has its elements in this storage.
  bool reads(const at::Tensor& tensor) const;

  /// Computes everything in the order in which it was put off, adds up what belongs to one weight
  /// in that order, as a whole backward does, and lets autograd accumulate each sum as soon as it
  /// is complete, with the weight's hooks. Leaves nothing.
  void run();

 private:
  struct Job {
    std::vector<at::Tensor> weights;
    at::Tensor gradient;
    Compute compute;
  };
  std::vector<Job> jobs_;
};

}  // namespace trireme::pipeline
