// SPDX-License-Identifier: Apache-2.0
// StageParameters: owns the parameters of one rank's stages. Over the ranks along `data`, which
// have the same stages, it shards them and sums their gradients once per step. In plans with tensor
// parallelism, the parameters are distributed, and each rank does this with its local part.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/optim/partial_tensors.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/gradients_aside.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/pipeline/staged_graph.h>
#include <trireme/parallel/step/stage_ranks.h>
#include <trireme/parallel/tensor_parallel/module_layouts.h>
#include <trireme/parallel/zero/part_norm_check.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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

/// The parameters and buffers of a module in a pipeline, and which rank along `pipe` uses them.
/// Only add_complete() may be called on several threads, as the devices of one process do.
class StageParameters {
 public:
  /// Calls detail::parallelize_manual(), whose errors it throws. Collective over `group`, and
  /// blocking.
  /// @param staged the first record, which decides which rank uses which tensors.
  /// @param stages the ranks of `group` along `pipe`, this one included.
  /// @param data the ranks of `group` along `data`, this one included.
  /// @param layouts must outlive this object.
  /// @param ranks must outlive this object.
  StageParameters(torch::nn::Module& module, const StagedGraph& staged, const Plan& plan,
                  const comm::Group& group, const comm::Group& stages, const comm::Group& data,
                  const detail::ModuleLayouts& layouts, StageRanks& ranks);

  Parallelized& parallelized() noexcept { return parallelized_; }

  /// Adds a further record of training, for other shapes or another function. Tensors that no stage
  /// has used so far belong to the ranks that use them in this record. A rank that uses a tensor
  /// for the first time, which no rank trains, gets memory for it and the values of a rank that has
  /// used it. Throws UsageError if a rank would use or train a tensor that another has trained.
  /// Collective over `stages`; all ranks pass the same record.
  void add_record(const StagedGraph& staged);
  /// Adds a record of evaluation. Works like add_record(), but tensors that no training has used
  /// are not assigned to ranks.
  void add_evaluation(const StagedGraph& staged);

  /// Returns the parameters that other ranks along `pipe` train, and the buffers that they write,
  /// as far as this rank does not use them.
  std::vector<detail::NamedTensor> trained_elsewhere() const;

  /// Throws UsageError for a parameter that was frozen, moved, cast or given other memory, or a
  /// sharded one that has no optimizer or was stepped too late. Not collective; called before
  /// begin_step().
  void check_before_step();
  /// Begins a step: stores what `.grad()` holds, to be added in finish_step(). Called before
  /// forward.
  void begin_step();
  /// Starts summing gradients that are complete on this rank. The ranks along `data` must call it
  /// for the same parameters in the same order.
  void add_complete(const StagedGraph::NamedTensors& parameters);
  /// Sums all gradients over the ranks along `data`, divides them by the number of these ranks
  /// times `summands`, and adds what begin_step() stored. Collective along `data`, and blocking.
  /// Until the next step begins, clipping by the norm of this rank's gradients alone throws
  /// UsageError (PartNormCheck).
  void finish_step(double summands);

  /// Returns the first rank along `pipe` that uses a parameter or buffer: 0 if none does, -1 if it
  /// does not belong to the module.
  int first_rank_of(const at::Tensor& tensor) const;

  /// Returns true if this rank counts a tensor that an optimizer steps here, for Sharing::is_part.
  bool counts(const at::Tensor& stepped) const;

 private:
  struct Used {
    at::Tensor tensor;
    std::set<int> ranks;   // along `pipe` (ranks or devices) that use it in training
    bool changes = false;  // true for a trained parameter, or a buffer that is written to
  };
  using UsedByName = std::map<std::string, Used>;  // by the name in records
  static UsedByName used_in(const StagedGraph& staged);
  void set_use(const Used& used);
  void add_up(double summands);
  static void begin_exchange(detail::Reducer& reducer);
  void share_constants(const UsedByName& now);
  void check_values() const;
  bool uses_here(const std::set<int>& ranks) const;

  comm::Group group_;
  comm::Group stages_;
  comm::Group data_;
  const StageRanks* ranks_;
  UsedByName used_;                                                // by any record of training
  std::unordered_map<const c10::TensorImpl*, int> first_ranks_;    // ranks of stages_
  std::shared_ptr<std::map<std::string, detail::StageUse>> uses_;  // by each name of a tensor
  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names_;
  Parallelized parallelized_;
  std::vector<at::Tensor> exchanged_;  // parameters that are not sharded
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // of add_complete()
  detail::GradientsAside aside_;
  std::vector<at::Tensor> cut_;  // parameters that are sharded
  const detail::ModuleLayouts& layouts_;
  std::int64_t num_steps_ = 0;                         // the number of steps begun
  detail::PartialTensors partial_;                     // all parameters, if there are several ranks
  std::unique_ptr<detail::PartNormCheck> norm_check_;  // otherwise null
};

}  // namespace trireme::pipeline
