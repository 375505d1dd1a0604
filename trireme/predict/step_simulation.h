// SPDX-License-Identifier: Apache-2.0
// Places the tasks of passes and the actions of a schedule on one time axis, and follows the memory
// of activations along it.
#pragma once

#include <trireme/predict/simulated_step.h>
#include <trireme/predict/stage_pass.h>
#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::predict {

/// What a simulation reads. Its references must outlive it.
struct SimulationInput {
  const StepCosts& costs;
  std::span<const StageModel> stages;
  int micro_batches = 1;
  bool reduces_each = false;                  ///< gradients are reduced in each micro-batch
  std::span<const double> optimizer_seconds;  ///< by rank along `pipe`
  std::int64_t rank_stride = 1;               ///< distance of neighbours along `pipe`
};

/// Simulates the ranks of a step.
class StepSimulation {
 public:
  explicit StepSimulation(const SimulationInput& input);

  /// Simulates a step without a pipeline.
  SimulatedRank one_stage() const;

  /// Simulates the ranks of a pipeline.
  /// @param times of its actions.
  /// @param tails by stage: the reductions of gradients that go on after the last action.
  /// @param heads by stage: the gathers that the next step waits for.
  std::vector<SimulatedRank> pipeline(const schedule::Schedule& schedule,
                                      const schedule::Times& times, std::span<const double> tails,
                                      std::span<const double> heads) const;

 private:
  SimulationInput input_;
  PassDetail detail_;
};

}  // namespace trireme::predict
