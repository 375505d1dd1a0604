// SPDX-License-Identifier: Apache-2.0
// Makes an optimizer of LibTorch step slices of parameters in place of the parameters, and gives
// it the parameters back with the state it would have had.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::detail {

/// A parameter of which this rank has a part. Parameters lie in buckets, and each rank's slice of a
/// bucket is as long as every other's.
struct SlicedParameter {
  at::Tensor parameter;
  at::Tensor memory;  ///< this rank's part of a distributed one, the parameter itself elsewhere
  std::size_t bucket = 0;
  std::int64_t place = 0;   ///< of its first element in the bucket
  at::Tensor part;          ///< [n], flat, what this rank steps; n is 0 where it has nothing
  std::int64_t offset = 0;  ///< of the part in that memory
  /// The part in pieces, in order, that are stepped in its place; none where it is stepped at once.
  /// An optimizer of LibTorch reads and writes each tensor several times in a step; a piece is
  /// still in the cache the second time.
  std::vector<at::Tensor> pieces;
};

/// Throws UsageError for an optimizer that does not treat every element alone: SGD, Adam, AdamW,
/// RMSprop and Adagrad do.
void check_elementwise(const torch::optim::Optimizer& optimizer);

/// Thread-safety: none.
class OptimizerSlices {
 public:
  /// @param bucket_elements of each bucket, a multiple of the ranks.
  OptimizerSlices(std::vector<SlicedParameter> parameters,
                  std::vector<std::int64_t> bucket_elements, comm::Group group);

  /// Replaces the parameters in all groups of the optimizer by this rank's parts, and cuts the
  /// state that it has of them; parameters that are not sliced stay. Throws UsageError, before it
  /// changes anything, for an optimizer that check_elementwise refuses, and for one that was taken
  /// over before.
  void take_over(torch::optim::Optimizer& optimizer);

  /// The reverse, with the whole state on every rank. Collective, blocking. Throws UsageError for
  /// an optimizer that was not taken over.
  void give_back(torch::optim::Optimizer& optimizer);

  /// Puts parts in place of their pieces into an optimizer that was taken over, with one state
  /// each, and back; the pieces share the memory of that state from then on. Other optimizers stay.
  void join(torch::optim::Optimizer& optimizer) const;
  void split(torch::optim::Optimizer& optimizer) const;

  /// Whether it is a part, or a piece of one, that take_over gave an optimizer.
  bool is_part(const at::Tensor& parameter) const { return of_part(parameter) != nullptr; }
  /// Of which parameter it is one; null where it is none.
  const SlicedParameter* of_part(const at::Tensor& part) const;
  /// Null for a parameter that is not cut.
  const SlicedParameter* find(const at::Tensor& parameter) const;
  /// All that were taken over.
  const std::vector<const torch::optim::Optimizer*>& takers() const { return taken_; }
  /// Which optimizer steps a parameter; null where none was given it.
  const torch::optim::Optimizer* taker_of(const at::Tensor& parameter) const;
  /// A parameter that no optimizer steps; null where there is none.
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
