// SPDX-License-Identifier: Apache-2.0
// Follows the layouts of tensors through a recorded micro-batch for any layouts of parameters,
// without running an operator: what a dry run does, thousands of times faster.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/tensor/placement.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme::search {

/// The micro-batch of a dry run along one axis. As in a run, each call takes the strategy that is
/// cheapest for its inputs.
class LayoutReplay {
 public:
  /// @param dry_run with all tensors replicated, and with its calls along the axis. Must outlive
  /// the replay.
  /// @param laid_out what it ran with.
  /// @param call_seconds time of each call on one rank that does all of its work.
  /// @param parameter_seconds time that each tensor of `laid_out` takes in the optimizer while it
  /// is whole on a rank.
  LayoutReplay(const detail::ModuleDryRun& dry_run, const LaidOutModule& laid_out, int axis,
               const std::vector<double>& call_seconds, std::vector<double> parameter_seconds);

  /// Returns the seconds of forward, backward and optimizer on one rank, with all redistributions.
  /// @param placements of the tensors of `laid_out` along the axis.
  double seconds(const std::vector<Placement>& placements);

  /// Returns the placements of the results of a call during the last seconds(); Results that are
  /// arguments are left out.
  std::vector<Placement> results_of(std::size_t call) const { return results_[call]; }

 private:
  // What a call does with its inputs as they are.
  struct Outcome {
    tensor::Strategy strategy;
    double seconds = 0;
  };
  struct Step {
    std::vector<int> inputs;   // values; -1: plain
    std::vector<int> outputs;  // values
    const tensor::CallAlongAxis* call = nullptr;
    tensor::AxisInputs costs;
    double seconds = 0;
    std::vector<std::pair<std::uint64_t, Outcome>> outcomes;  // by the placements of the inputs
  };
  struct Gradient {
    int value = -1;
    std::size_t parameter = 0;
    double bytes = 0;
  };

  double run(Step& step);
  Outcome decide(const Step& step) const;
  const Outcome& outcome_of(Step& step, std::uint64_t key) const;
  Placement at(int value) const;

  DeviceMesh mesh_;
  int axis_;
  std::vector<Step> steps_;
  std::vector<Gradient> gradients_;
  std::vector<int> value_of_parameter_;  // -1: not read
  std::vector<double> parameter_seconds_;
  std::vector<Placement> values_;                // as they are at the present step
  std::vector<std::vector<Placement>> results_;  // by call
};

}  // namespace trireme::search
