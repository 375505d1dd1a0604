// SPDX-License-Identifier: Apache-2.0
// GradientReducer: sums or averages gradients over ranks when it is called, after backward. For
// loops that process local gradients first. parallelize() does the same while backward runs.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/module_ref.h>
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

/// Options of a GradientReducer. All ranks pass the same values.
struct GradientReducerOptions {
  /// The reduction over ranks: a sum, or a sum that is divided once by `degree`.
  GradientReduction reduction = GradientReduction::kMean;

  /// The divisor of the mean; 0 means the number of ranks. If each rank's loss is a sum over its
  /// samples, pass the number of all samples: the result is then right even if ranks have different
  /// numbers of samples.
  std::int64_t degree = 0;

  /// The part of the divisor that is applied before the sum over ranks; the rest is applied after.
  /// With 1, means in half precision are divided by a power of two first, not below the number of
  /// ranks, so that sums do not overflow. Other values lose the bitwise guarantees of the numerics
  /// contract (docs/design/numerics.md).
  double predivide = 1;

  /// The approximate size of a bucket, in bytes. All buckets are reduced concurrently.
  std::int64_t bucket_bytes = 25LL << 20;
};

/// Reduces the gradients of a module or a list of parameters over the ranks of a group. It sets no
/// hooks and does not change parameters; these must be equal on all ranks already. Move-only and
/// not thread-safe.
///
///     GradientReducer reducer(*net, group);
///     scale.scale(loss).backward();
///     clip_by_global_norm(optimizer, 1.0 * scale.value());  // this rank's own, still scaled
///     reducer.reduce();
///     if (scale.unscale(optimizer)) optimizer.step();
class GradientReducer {
 public:
  /// Takes the parameters that require gradients now. A parameter that is listed twice counts once.
  /// Collective and blocking. Throws the same UsageError on every rank if options or parameters
  /// differ between ranks or cannot be reduced.
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

  /// Sums every `.grad()` over all ranks, divides the sum, and writes it into the same `.grad()`.
  /// Ranks are added in rank order if the group adds so (Group::summation_order). A parameter
  /// without a gradient on any rank keeps none. If only some ranks have a gradient, it counts as
  /// zero on the others, and all ranks have one afterwards. A group of one only divides by
  /// `degree`, if that is set. Call it once per step. Collective and blocking.
  ///
  /// Throws UsageError on every rank, without changing any gradient, if a gradient on any rank is
  /// sparse or does not fit its parameter. Throws CommError if the exchange fails.
  void reduce();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
