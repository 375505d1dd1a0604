// SPDX-License-Identifier: Apache-2.0
// Follows the layouts of tensors through a recorded micro-batch for any layouts of parameters,
// without running an operator: what a dry run does, thousands of times faster.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/tensor/placement.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::search {

/// Calls that can be decided for other placements along an axis (detail::ModuleDryRun::along_axis).
using AlongAxis = std::vector<std::shared_ptr<const tensor::CallAlongAxis>>;

/// The micro-batch of a dry run along one axis. As in a run, each call takes the strategy that is
/// cheapest for its inputs.
class LayoutReplay {
 public:
  /// @param dry_run with all tensors replicated.
  /// @param along_axis each of its calls along the axis.
  /// @param laid_out what it ran with.
  /// @param call_seconds time of each call on one rank that does all of its work.
  /// @param parameter_seconds time that each tensor of `laid_out` takes in the optimizer while it
  /// is whole on a rank.
  LayoutReplay(const detail::ModuleDryRun& dry_run, const AlongAxis& along_axis,
               const LaidOutModule& laid_out, int axis, const std::vector<double>& call_seconds,
               std::vector<double> parameter_seconds);

  /// Returns the seconds of forward, backward and optimizer on one rank, with all redistributions.
  /// @param placements of the tensors of `laid_out` along the axis.
  double seconds(const std::vector<Placement>& placements);

  /// Returns the placements of the results of a call during the last seconds(). Results that are
  /// arguments are left out.
  std::vector<Placement> results_of(std::size_t call) const;

 private:
  // The number of a placement in placements_. 0 is Replicate.
  using Code = std::uint8_t;

  // What a call does with its inputs as they are.
  struct Outcome {
    double seconds = 0;       // of what is redistributed
    bool is_sharded = false;  // ranks share the work
    std::vector<Code> outputs{};
    std::vector<std::pair<std::size_t, Code>> kept{};  // inputs that stay as they are brought
  };
  // Calls that are alike.
  struct CallKind {
    std::shared_ptr<const tensor::CallAlongAxis> call{};
    tensor::AxisInputs costs{};
    bool has_kernel = false;
    bool may_keep = false;  // inputs may stay as they are brought
    std::vector<std::pair<std::uint64_t, Outcome>> outcomes{};  // by the placements of the inputs
  };
  // Positions in inputs_ or outputs_.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  struct Step {
    int kind = -1;  // position in kinds_; -1: no call of an operator
    Range inputs;
    Range outputs;
    double seconds = 0;
  };
  struct Output {
    std::size_t value = 0;
    std::size_t result = 0;  // position among the results of the call
  };
  struct Gradient {
    int value = -1;
    std::size_t parameter = 0;
    double bytes = 0;
  };

  int kind_of(const std::shared_ptr<const tensor::CallAlongAxis>& call);
  double run(const Step& step);
  Outcome decide(const CallKind& kind, const Step& step);
  const Outcome& outcome_of(CallKind& kind, const Step& step, std::uint64_t key);
  Code code_of(const Placement& placement);
  Placement at(int value) const;

  DeviceMesh mesh_;
  int axis_;
  std::vector<Placement> placements_ = {Placement(Replicate{})};  // by code
  std::vector<CallKind> kinds_;
  std::unordered_map<const tensor::CallAlongAxis*, int> kind_of_call_;
  std::vector<Step> steps_;
  std::vector<std::size_t> inputs_;  // values of all steps; plain tensors are the last value
  std::vector<Output> outputs_;      // of all steps
  std::vector<Code> results_;        // of outputs_, during the last replay
  std::vector<Gradient> gradients_;
  std::vector<int> value_of_parameter_;  // -1: not read
  std::vector<double> parameter_seconds_;
  std::vector<Code> values_;  // as they are at the present step; the last one stays replicated
};

}  // namespace trireme::search
