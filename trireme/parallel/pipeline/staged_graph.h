// SPDX-License-Identifier: Apache-2.0
// A captured module cut into the stages of a plan, as a program that the executor takes.
#pragma once

#include <trireme/graph/capture.h>
#include <trireme/graph/replay.h>
#include <trireme/parallel/pipeline/program/pipeline_program.h>
#include <trireme/parallel/recompute/plan_recomputation.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::pipeline {

/// Which micro-batch of all ranks' the first of this rank is, and the seed of random numbers.
struct Numbering {
  std::uint64_t seed = 0;
  std::int64_t first_micro_batch = 0;
};

/// A device, and what lies there for the parameters and buffers of a module.
struct Place {
  at::Device device = at::kCPU;
  /// By a name of named_parameters() or named_buffers(); called while this lives.
  std::function<at::Tensor(const std::string& name)> tensor{};
};

/// A module's forward and loss, for the micro-batches of one batch.
class StagedGraph {
 public:
  /// Captures micro-batches of each size that is there, and cuts the module as the plan says. Not
  /// collective; the same on ranks with the same module. Throws UsageError as graph::capture and
  /// graph::cut, for a first result that is no loss, and for micro-batches of several sizes that
  /// take different operators.
  StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
              const std::vector<std::vector<at::Tensor>>& micro_batches, const Plan& plan);
  /// The same; where the plan names no stages it is cut where `first` is (cut_like.h).
  StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
              const std::vector<std::vector<at::Tensor>>& micro_batches, const Plan& plan,
              const StagedGraph& first);

  /// The same for evaluation: forward alone, without gradients, whose further results are kept. Is
  /// cut where `trained` is (cut_like.h).
  static StagedGraph for_evaluation(torch::nn::Module& module, const graph::Forward& forward,
                                    const std::vector<std::vector<at::Tensor>>& micro_batches,
                                    const Plan& plan, const StagedGraph& trained);

  const graph::Graph& graph() const { return *graphs_.front(); }
  /// For each size of micro-batches one, the first as graph().
  const std::vector<std::shared_ptr<const graph::Graph>>& graphs() const noexcept {
    return graphs_;
  }
  const std::vector<int>& boundaries() const noexcept { return boundaries_; }
  const Program& program() const noexcept { return program_; }
  /// What is computed again, of the first micro-batch; nothing in evaluations.
  const Recomputation& recomputation() const noexcept { return recomputation_; }

  /// Makes each micro-batch count 1, however many rows it has. Before the program is used.
  void count_alike() { program_.weights.clear(); }

  /// Those of one rank along `pipe`.
  std::vector<StageCode> code_of(int rank, const Numbering& numbering) const;
  /// The same elsewhere than where the module lies.
  std::vector<StageCode> code_of(int rank, const Numbering& numbering, const Place& place) const;

  /// By name, those that stages of the rank use, each once.
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
  NamedTensors parameters_of(int rank) const;
  NamedTensors buffers_of(int rank) const;
  NamedTensors written_buffers_of(int rank) const;
  NamedTensors tensors_of(int rank) const;  ///< both
  /// Those that this stage uses and no other.
  NamedTensors parameters_of_stage_alone(int stage) const;

  /// Throws UsageError naming the first operator that a new record has otherwise.
  void check_still_true(torch::nn::Module& module, const graph::Forward& forward,
                        const std::vector<std::vector<at::Tensor>>& micro_batches) const;

  /// Throws UsageError where what forward returns after the loss cannot be put together along dim
  /// 0, because other dims differ between micro-batches. The same on all ranks.
  void check_results_join() const;

  std::string to_string() const;

 private:
  StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
              const std::vector<std::vector<at::Tensor>>& micro_batches, const Plan& plan,
              const StagedGraph* first, bool is_evaluation);
  void cut(const Plan& plan);
  void set_schedule(const Plan& plan, std::size_t micro_batches);
  void set_program(const Plan& plan, const std::vector<std::vector<at::Tensor>>& micro_batches);
  void add_boundary_tensors();
  int stage_of(int node) const;
  const NamedTensors::value_type& tensor_of(graph::ValueId id) const;
  StageCode code_of_stage(int stage, const Numbering& numbering, const Place* place) const;
  std::vector<StageCode> code_of(int rank, const Numbering& numbering, const Place* place) const;
  NamedTensors tensors_of(int rank,
                          const std::vector<graph::ValueId>& (graph::Piece::*which)() const) const;

  NamedTensors tensors_;                                     ///< of the module
  std::vector<std::shared_ptr<const graph::Graph>> graphs_;  ///< by variant
  std::vector<int> boundaries_;
  std::vector<std::vector<graph::Piece>> pieces_;  ///< by variant and stage
  Program program_;
  Recomputation recomputation_;
};

}  // namespace trireme::pipeline
