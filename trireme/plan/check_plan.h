// SPDX-License-Identifier: Apache-2.0
// Says what keeps a plan from being carried out, all reasons at once.
#pragma once

#include <trireme/plan/plan.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// The two ways to carry out a plan.
enum class PlanEntry : std::uint8_t {
  kAny,           ///< not known yet: checks what holds for both
  kParallelize,   ///< trireme::parallelize, for loops that call backward() themselves
  kTrainingStep,  ///< trireme::TrainingStep
};

/// Where a plan is to be carried out.
struct PlanUse {
  int ranks = 1;                      ///< of the group
  PlanEntry entry = PlanEntry::kAny;  ///< what carries it out
  /// Devices of each process, where these are the ranks along `pipe`; 0: they are ranks of the
  /// group.
  int devices = 0;
  /// Stages are on accelerators, whose activations can be moved to host memory.
  bool on_accelerators = false;
};

/// A reason for which a plan cannot be carried out.
struct PlanProblem {
  std::string text;  ///< names the field, its value and what was expected
  std::string hint;  ///< says what to do
};

/// Returns all reasons for which `plan` cannot be carried out there; nothing where it can. Throws
/// DataError with line and column for a schedule of its own that cannot be read, as own_schedule.
std::vector<PlanProblem> plan_problems(const Plan& plan, const PlanUse& use);

/// Throws a UsageError that lists all problems of the plan, if there are any.
void check_plan(const Plan& plan, const PlanUse& use);

/// Returns whether a plan asks for what parallelize does not do and a TrainingStep does: stages, a
/// `pipe` axis, or something that is recomputed or offloaded.
bool needs_training_step(const Plan& plan);

/// Returns the plan with the axes `pipe` and `data` in its mesh, of size 1 where it names neither;
/// `pipe` has the devices of each process where there are any.
Plan with_pipe_and_data(Plan plan, const PlanUse& use);

}  // namespace trireme
