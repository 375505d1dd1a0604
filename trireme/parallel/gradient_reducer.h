// SPDX-License-Identifier: Apache-2.0
// Adds or averages gradients over ranks when it is told to: for loops that are written by hand and
// want to do something with the local gradients before. parallelize does it while backward runs.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/module/module_ref.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace torch {
template <typename Key, typename Value>
class OrderedDict;
namespace nn {
class Module;
}
}  // namespace torch

namespace trireme {

struct GradientReducerOptions {
  /// What becomes of the sum over ranks: divided once by the degree, or left as it is.
  GradientReduction reduction = GradientReduction::kMean;

  /// What the mean divides by; 0: the number of ranks. The number of all samples, where each rank's
  /// loss is a sum over its own: right however many a rank has, where a mean of means is not.
  std::int64_t degree = 0;

  /// The mean divides by this before it adds, and by so much less after, so that sums in half
  /// precision do not overflow. Other values than 1 give up the bits of the numerics contract.
  double predivide = 1;

  /// Gradients travel in buckets of about this many bytes, all of them at once.
  std::int64_t bucket_bytes = 25LL << 20;
};

/// Sets no hooks and changes no parameters; the ranks must have equal ones already. Move-only, not
/// thread-safe.
///
///     GradientReducer reducer(*net, group);
///     scale.scale(loss).backward();
///     clip_by_global_norm(optimizer, 1.0 * scale.value());  // this rank's own, still scaled
///     reducer.reduce();
///     if (scale.unscale(optimizer)) optimizer.step();
class GradientReducer {
 public:
  /// Takes the parameters that require gradients now; one that is there twice counts once.
  /// Collective and blocking. Throws the same UsageError on every rank for options or parameters
  /// that differ between ranks or cannot be reduced.
  [[nodiscard]] GradientReducer(const torch::OrderedDict<std::string, at::Tensor>& parameters,
                                comm::Group group, const GradientReducerOptions& options = {});
  [[nodiscard]] GradientReducer(const torch::nn::Module& module, comm::Group group,
                                const GradientReducerOptions& options = {});
  template <ModuleHolder Holder>
  [[nodiscard]] GradientReducer(const Holder& holder, comm::Group group,
                                const GradientReducerOptions& options = {})
      : GradientReducer(*ModuleRef(holder), std::move(group), options) {}
  GradientReducer(GradientReducer&&) noexcept;
  GradientReducer& operator=(GradientReducer&&) noexcept;
  ~GradientReducer();

  /// Adds every `.grad()` over all ranks, in rank order where the group adds so
  /// (Group::summation_order), divides the sum, and writes it into the same `.grad()`. A parameter
  /// that has no gradient on any rank keeps none; where only some ranks have one, it counts as zero
  /// on the others and all have one afterwards. A group of one divides by a given degree and
  /// changes nothing else. Collective and blocking, once a step.
  ///
  /// Throws UsageError on every rank, and changes no gradient, where one on any rank is sparse or
  /// does not fit its parameter; CommError.
  void reduce();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
