// SPDX-License-Identifier: Apache-2.0
// Makes a LibTorch optimizer step slices of parameters in place of the parameters. Later it can be
// given the parameters back, with the state that it would have had.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::detail {

/// A parameter and the part of it that this rank steps. Parameters lie in buckets, which are
/// divided into slices of equal length, one for each rank.
struct SlicedParameter {
  at::Tensor parameter;  ///< may be distributed
  at::Tensor memory;     ///< this rank's part of a distributed parameter, else the parameter itself
  std::size_t bucket = 0;
  std::int64_t place = 0;   ///< offset of its first element in the bucket, in elements
  at::Tensor part;          ///< [n], flat, what this rank steps; n is 0 if it has nothing
  std::int64_t offset = 0;  ///< offset of the part in `memory`, in elements
  /// Consecutive pieces of the part, which are stepped in its place; empty if it is stepped as one.
  /// LibTorch's optimizers read and write each tensor several times in a step. A small piece stays
  /// in the cache meanwhile.
  std::vector<at::Tensor> pieces;
};

/// Throws UsageError unless the optimizer can step parts of parameters: SGD, Adam, AdamW, RMSprop
/// and Adagrad treat every element by itself, and LAMB adds up norms over ranks.
void check_can_step_parts(const torch::optim::Optimizer& optimizer);

/// Exchanges parameters for parts in optimizers, and keeps track of who steps what. Not
/// thread-safe.
class OptimizerSlices {
 public:
  /// @param parameters all parameters that are cut.
  /// @param bucket_elements the length of each bucket, a multiple of the number of ranks.
  /// @param group the ranks that hold the slices.
  OptimizerSlices(std::vector<SlicedParameter> parameters,
                  std::vector<std::int64_t> bucket_elements, comm::Group group);

  /// Replaces the parameters in all groups of the optimizer by this rank's parts, and cuts their
  /// state and gradients. Parameters that are not sliced stay. Throws UsageError, before anything
  /// is changed, if:
  /// - check_can_step_parts() refuses the optimizer,
  /// - the optimizer steps parts already, or
  /// - it has none of the sliced parameters.
  void take_over(torch::optim::Optimizer& optimizer);

  /// Throws UsageError for an optimizer that was not taken over. Not collective.
  void check_taken(const torch::optim::Optimizer& optimizer) const;
  /// Undoes take_over() and gives every rank the whole state. Collective and blocking. The
  /// optimizer must have been taken over.
  void give_back(torch::optim::Optimizer& optimizer);

  /// Replaces the pieces in an optimizer by their part, with one state. Changes nothing else.
  void join(torch::optim::Optimizer& optimizer) const;
  /// Undoes join(). The pieces share the memory of the part's state from then on.
  void split(torch::optim::Optimizer& optimizer) const;

  /// Returns true if the tensor is a part, or a piece of one, that take_over() gave an optimizer.
  bool is_part(const at::Tensor& parameter) const { return of_part(parameter) != nullptr; }
  /// Returns the parameter that a part or piece belongs to; null for any other tensor.
  const SlicedParameter* of_part(const at::Tensor& part) const;
  /// Returns the entry of a parameter; null if it is not cut.
  const SlicedParameter* find(const at::Tensor& parameter) const;
  /// Returns all optimizers that were taken over and not given back.
  const std::vector<const torch::optim::Optimizer*>& takers() const { return taken_; }
  /// Returns the optimizer that steps a parameter; null if there is none.
  const torch::optim::Optimizer* taker_of(const at::Tensor& parameter) const;
  /// Returns a parameter that no optimizer steps, including one whose optimizer was destroyed; null
  /// if there is none.
  const at::Tensor* find_untaken() const;

 private:
  bool steps_parts(const torch::optim::Optimizer& optimizer) const;

  std::vector<SlicedParameter> parameters_;
  std::vector<std::int64_t> bucket_elements_;
  comm::Group group_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> parts_;  // and pieces: of which
  std::unordered_map<const c10::TensorImpl*, const torch::optim::Optimizer*> takers_;
  std::vector<const torch::optim::Optimizer*> taken_;
};

}  // namespace trireme::detail
