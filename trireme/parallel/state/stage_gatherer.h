// SPDX-License-Identifier: Apache-2.0
// Brings tensors of the ranks along `pipe`, which hold different stages of a module, to one rank.
#pragma once

#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/comm/group.h>
#include <trireme/mesh/mesh_axis.h>
#include <trireme/parallel/parallelize.h>

#include <ATen/core/Tensor.h>

namespace trireme::detail {

/// Knows which ranks hold which stages. Without an axis `pipe` every rank has the whole module, and
/// nothing is sent. Not thread-safe.
class StageGatherer {
 public:
  explicit StageGatherer(const Parallelized& parallelized);

  /// Returns true if the module is divided into stages.
  bool has_stages() const noexcept { return num_stages_ > 1; }
  /// Returns true if `rank` holds the same stages as this rank.
  bool has_own_stages(int rank) const {
    return stage_rank_of(rank) == stage_rank_of(group_.rank());
  }

  /// Brings one tensor to `root`, from the rank with number `stage_rank` along `pipe` that reads
  /// the same data as `root`. Returns what was received on `root`, and `tensor` itself on other
  /// ranks. Must be called on all ranks for the same tensors in the same order. Blocking.
  at::Tensor gather_to(const at::Tensor& tensor, int stage_rank, int root) const;
  /// Merges the optimizer state of all stages on `root`. Other ranks keep their own. If there are
  /// stages, distributed tensors of the state are gathered on all ranks. Collective and blocking.
  void gather_all_to(checkpoint::OptimizerState& state, const Parallelized& parallelized,
                     int root) const;

 private:
  int stage_rank_of(int rank) const;
  // Returns the rank that reads the same data as `rank` and holds the stages of `stage_rank`.
  int beside(int rank, int stage_rank) const;

  comm::Group group_;
  int num_stages_ = 1;
  int stride_ = 1;  // distance in rank numbers between neighbours along pipe
};

/// Returns the part of `state` (tensors and scalars) for parameters that this rank's stages use.
checkpoint::OptimizerState state_of_stages(const checkpoint::OptimizerState& state,
                                           const Parallelized& parallelized);

}  // namespace trireme::detail
