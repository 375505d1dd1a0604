// SPDX-License-Identifier: Apache-2.0
// The parameters of the stages of one rank, and what the ranks along `data` that have the same
// stages do with them: cut them, and add up their gradients once a step. Where ranks share the work
// on a stage they are distributed, and this is done with each rank's part.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/optim/partial_tensors.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/gradients_aside.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/pipeline/staged_graph.h>
#include <trireme/parallel/step/stage_norm_check.h>
#include <trireme/parallel/step/stage_ranks.h>
#include <trireme/parallel/tensor_parallel/module_layouts.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme::pipeline {

/// Not thread-safe. What is said to be alike is so on the ranks along `data`.
class StageParameters {
 public:
  /// See parallelize_manual, whose errors it throws. Collective over `group`, blocking.
  /// @param stages,data the ranks of `group` along `pipe` and `data` of this one.
  /// @param ranks must outlive this.
  StageParameters(torch::nn::Module& module, const StagedGraph& staged, const Plan& plan,
                  const comm::Group& group, const comm::Group& stages, const comm::Group& data,
                  const detail::ModuleLayouts& layouts, StageRanks& ranks);

  Parallelized& parallelized() noexcept { return parallelized_; }

  /// Takes in a record of training, for other shapes or another function: what no stage has used
  /// so far belongs to the ranks that use it there. A tensor that no rank trains gets memory here,
  /// and the values of a rank that has used it. Throws UsageError if a rank would use or train what
  /// another has trained. Collective over `stages`; all ranks pass the same record.
  void add_record(const StagedGraph& staged);
  /// Does the same for a record of evaluation. Tensors that no training has used are not changed.
  void add_evaluation(const StagedGraph& staged);

  /// Parameters that other ranks along `pipe` train, and buffers that they write to, and this one
  /// does not use.
  std::vector<detail::NamedTensor> trained_elsewhere() const;

  /// Throws UsageError as Reducer::check_before_step. Not collective; called before begin_step().
  void check_before_step();
  /// Before forward: puts aside what `.grad()` holds.
  void begin_step();
  /// Gradients that are complete on this rank begin to travel. Alike.
  void add_complete(const StagedGraph::NamedTensors& parameters);
  /// Adds up all gradients, divides them by the ranks times `summands`, and adds them to what was
  /// put aside. Alike, blocking. Until the next step begins, clipping by the norm of this rank's
  /// gradients alone throws UsageError (StageNormCheck).
  void finish_step(double summands);

  /// The first rank along `pipe` that uses a parameter or buffer, 0 where none does; -1 for what
  /// is not the module's.
  int first_rank_of(const at::Tensor& tensor) const;

  /// For Sharing: whether this rank counts what an optimizer steps here.
  bool counts(const at::Tensor& stepped) const;

 private:
  struct Used {
    at::Tensor tensor;
    std::set<int> ranks;   // along `pipe`, that use it in training; devices where they are that
    bool changes = false;  // a parameter that is trained, or a buffer that is written to
  };
  using UsedByName = std::map<std::string, Used>;  // by the name that records have
  static UsedByName used_in(const StagedGraph& staged);
  void set_use(const Used& used);
  void add_up(double summands);
  void share_constants(const UsedByName& now);
  void check_values() const;
  bool uses_here(const std::set<int>& ranks) const;

  comm::Group group_;
  comm::Group stages_;
  comm::Group data_;
  const StageRanks* ranks_;
  UsedByName used_;                                                // in any record of training
  std::unordered_map<const c10::TensorImpl*, int> first_ranks_;    // of stages_
  std::shared_ptr<std::map<std::string, detail::StageUse>> uses_;  // by every name
  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names_;
  Parallelized parallelized_;
  std::vector<at::Tensor> exchanged_;  // those that are not cut
  detail::GradientsAside aside_;
  std::vector<at::Tensor> cut_;
  const detail::ModuleLayouts& layouts_;
  std::int64_t num_steps_ = 0;                  // the number of steps begun
  detail::PartialTensors partial_;              // all parameters, if there are several ranks
  std::unique_ptr<StageNormCheck> norm_check_;  // otherwise null
};

}  // namespace trireme::pipeline
