// SPDX-License-Identifier: Apache-2.0
// WeightGradients: the queue of weight gradients that operators defer while backward computes the
// gradients of inputs. See operators.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace trireme::pipeline {

/// The deferred weight gradients of one stage and micro-batch. Not thread-safe; backward fills it
/// on one thread at a time.
class WeightGradients {
 public:
  /// Computes the gradients of the weights that were passed to put_off() with it, in their order.
  using Compute = std::function<std::vector<at::Tensor>()>;

  /// Makes `gradients` the current queue of this thread while it lives. Operators that forward runs
  /// then defer their weight gradients to it. Null means that they do not.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(std::shared_ptr<WeightGradients> gradients);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::shared_ptr<WeightGradients> previous_;
  };

  /// Returns the queue of this thread's innermost guard, or null if there is none.
  static const std::shared_ptr<WeightGradients>& current() noexcept;

  /// Adds a computation to the queue.
  /// @param weights the leaves whose gradients `compute` returns; all defined.
  /// @param gradient the output gradient that `compute` reads; undefined if it reads none.
  void put_off(std::vector<at::Tensor> weights, at::Tensor gradient, Compute compute);

  /// Returns true if a queued computation reads a gradient that shares memory with `tensor`.
  bool reads(const at::Tensor& tensor) const;

  /// Runs all computations in the order in which they were added, and empties the queue. The
  /// gradients of one weight are added in that order, as in a whole backward. Autograd accumulates
  /// each sum as soon as it is complete, and runs the weight's hooks.
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
