// SPDX-License-Identifier: Apache-2.0
// Where what ranks along `pipe` have of a module lies among all ranks, and how it comes to one of
// them.
#pragma once

#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/comm/group.h>
#include <trireme/mesh/mesh_axis.h>
#include <trireme/parallel/parallelize.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace trireme::detail {

/// Without an axis `pipe` every rank has everything, and nothing moves. Not thread-safe.
class StageGatherer {
 public:
  explicit StageGatherer(const Parallelized& parallelized);

  bool has_stages() const noexcept { return num_stages_ > 1; }
  /// Whether a rank has the stages of this one.
  bool has_own_stages(int rank) const {
    return stage_rank_of(rank) == stage_rank_of(group_.rank());
  }

  /// Returns on `root` what `tensor` is on the rank along `pipe` that reads the same data, and on
  /// others the tensor. Alike on all ranks for every tensor, blocking.
  at::Tensor gather_to(const at::Tensor& tensor, int stage_rank, int root) const;
  /// Puts the state of all stages together on `root`; others keep theirs. What is distributed is
  /// whole afterwards, where there are stages. Collective, blocking.
  void gather_all_to(checkpoint::OptimizerState& state, const Parallelized& parallelized,
                     int root) const;

 private:
  int stage_rank_of(int rank) const;
  // The rank with the data of `rank` and those stages.
  int beside(int rank, int stage_rank) const;

  comm::Group group_;
  int num_stages_ = 1;
  int stride_ = 1;  // between neighbours along pipe
};

/// The state of parameters that stages of this rank use; scalars likewise.
checkpoint::OptimizerState state_of_stages(const checkpoint::OptimizerState& state,
                                           const Parallelized& parallelized);

}  // namespace trireme::detail
