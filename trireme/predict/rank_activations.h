// SPDX-License-Identifier: Apache-2.0
// Follows what one rank along `pipe` keeps for backward, over all micro-batches in flight, from
// action to action of its schedule.
#pragma once

#include <trireme/predict/stage_pass.h>
#include <trireme/schedule/action.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace trireme::predict {

/// Memory of activations at a moment, in bytes.
struct ActivationMoment {
  double kept = 0;       ///< for backward, of all micro-batches in flight
  double temporary = 0;  ///< beyond that
  double total() const noexcept { return kept + temporary; }
};

/// Divides what a micro-batch holds at a moment into what it keeps, and what is temporary.
/// @param beside what other micro-batches keep.
ActivationMoment moment_of(const ActivationMemory& stage, double held, double beside);

/// The activations of one rank. Refers to its arguments, which must outlive it.
class RankActivations {
 public:
  /// @param actions of the rank, in order.
  /// @param stages all stages of the schedule.
  RankActivations(const std::vector<schedule::Action>& actions, std::span<const StageModel> stages);

  /// Returns what all micro-batches keep, but for the one of the action.
  double beside(const schedule::Action& action) const;
  /// Returns the memory of the moment in an action at which it is largest.
  ActivationMoment largest_in(const schedule::Action& action) const;
  /// Goes on to the moment after an action.
  void end(const schedule::Action& action);
  /// Returns what all micro-batches keep.
  double kept() const noexcept { return kept_; }

 private:
  // The place of a stage and micro-batch.
  std::size_t place_of(const schedule::Action& action) const {
    return static_cast<std::size_t>(action.micro_batch) * stages_.size() +
           static_cast<std::size_t>(action.stage);
  }
  const ActivationMemory& memory_of(const schedule::Action& action) const {
    return stages_[static_cast<std::size_t>(action.stage)].memory;
  }
  void hold(const schedule::Action& action, double bytes);

  std::span<const StageModel> stages_;
  std::vector<bool> recomputed_;  // by actions of their own, by place
  std::vector<double> held_;      // by place
  double kept_ = 0;
};

/// Returns the most bytes of activations that a rank has offloaded at a time.
double largest_on_host(const std::vector<schedule::Action>& actions,
                       std::span<const StageModel> stages);

/// Returns the largest memory of a rank, and the stage whose action reaches it.
std::pair<ActivationMoment, int> largest_moment(const std::vector<schedule::Action>& actions,
                                                std::span<const StageModel> stages);

}  // namespace trireme::predict
