// SPDX-License-Identifier: Apache-2.0
// StagedGraph: captures a module, cuts the graph into the stages of a plan, and turns them into a
// Program and StageCode for the executor.
#pragma once

#include <trireme/graph/capture.h>
#include <trireme/graph/replay.h>
#include <trireme/parallel/pipeline/pipeline_program.h>
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

/// The keys of random numbers on this rank.
struct Numbering {
  std::uint64_t seed = 0;
  /// The number of this rank's first micro-batch, counted over all ranks along `data`.
  std::int64_t first_micro_batch = 0;
};

/// A device, and the tensors that stand for a module's parameters and buffers on it.
struct Place {
  at::Device device = at::kCPU;
  /// Returns the tensor for a name of named_parameters() or named_buffers(). Called only while this
  /// object lives.
  std::function<at::Tensor(const std::string& name)> tensor{};
};

/// The captured forward and loss of a module, cut into stages, for the micro-batches of one batch.
class StagedGraph {
 public:
  /// Captures the module once for each size of micro-batches, and cuts it as the plan says. Not
  /// collective; ranks with the same module get the same result. Throws UsageError as
  /// graph::capture and graph::cut, for a first result that is not a loss, and if micro-batches of
  /// different sizes run different operators.
  StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
              const std::vector<std::vector<at::Tensor>>& micro_batches, const Plan& plan);
  /// Does the same. If the plan names no stages, cuts the graph where `first` is cut (cut_like.h).
  StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
              const std::vector<std::vector<at::Tensor>>& micro_batches, const Plan& plan,
              const StagedGraph& first);

  /// Does the same for an evaluation: forward only, without gradients. The results after the loss
  /// are returned too. The graph is cut where `trained` is cut (cut_like.h).
  static StagedGraph for_evaluation(torch::nn::Module& module, const graph::Forward& forward,
                                    const std::vector<std::vector<at::Tensor>>& micro_batches,
                                    const Plan& plan, const StagedGraph& trained);

  const graph::Graph& graph() const { return *graphs_.front(); }
  /// Returns one graph for each size of micro-batches. The first is graph().
  const std::vector<std::shared_ptr<const graph::Graph>>& graphs() const noexcept {
    return graphs_;
  }
  /// Returns the cuts: stage s has the operators from boundaries()[s] up to boundaries()[s + 1],
  /// exclusive.
  const std::vector<int>& boundaries() const noexcept { return boundaries_; }
  /// Returns the program for the executor.
  const Program& program() const noexcept { return program_; }
  /// Returns the operators that backward computes again, for the first micro-batch. Empty for
  /// evaluations.
  const Recomputation& recomputation() const noexcept { return recomputation_; }

  /// Gives each micro-batch the same weight, whatever its number of rows. Call it before the
  /// program is used.
  void count_alike();

  /// Returns the stages of one rank along `pipe`, bound to the module's tensors.
  std::vector<StageCode> code_of(int rank, const Numbering& numbering) const;
  /// Returns the stages of one rank along `pipe`, bound to the device and tensors of `place`.
  std::vector<StageCode> code_of(int rank, const Numbering& numbering, const Place& place) const;

  /// Tensors of the module with their names, each once.
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
  /// Returns the parameters that the stages of a rank use.
  NamedTensors parameters_of(int rank) const;
  /// Returns the buffers that the stages of a rank use.
  NamedTensors buffers_of(int rank) const;
  /// Returns the buffers that the stages of a rank write to.
  NamedTensors written_buffers_of(int rank) const;
  /// Returns the parameters and buffers that the stages of a rank use.
  NamedTensors tensors_of(int rank) const;
  /// Returns the parameters that only this stage uses.
  NamedTensors parameters_of_stage_alone(int stage) const;

  /// Captures the module again and throws UsageError if an operator changed, naming the first one.
  void check_still_true(torch::nn::Module& module, const graph::Forward& forward,
                        const std::vector<std::vector<at::Tensor>>& micro_batches) const;

  /// Throws UsageError if the results after the loss cannot be concatenated along dim 0, because
  /// other dims differ between micro-batches. All ranks get the same result.
  void check_results_join() const;

  /// Returns the description that TrainingStep::to_string() returns.
  std::string to_string() const;

 private:
  StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
              const std::vector<std::vector<at::Tensor>>& micro_batches, const Plan& plan,
              const StagedGraph* first, bool is_evaluation);
  void cut(const Plan& plan);
  void set_schedule(const Plan& plan, std::size_t micro_batches);
  void set_program(const Plan& plan, const std::vector<std::vector<at::Tensor>>& micro_batches);
  void set_weights(std::vector<double> weights);
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
