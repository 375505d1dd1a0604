// SPDX-License-Identifier: Apache-2.0
// Proves that a schedule can be executed: complete, in an order that respects dependencies, free of
// deadlock under the engine's rules for messages, and within a rank's memory. Runs before anything
// is executed or timed: docs/design/schedules.md.
#pragma once

#include <trireme/schedule/verifier/finding.h>
#include <trireme/schedule/verifier/memory.h>
#include <trireme/schedule/walk.h>

#include <cstdint>
#include <vector>

namespace trireme::schedule {

/// What a schedule may have of pairs of stage, or of edge, and micro-batch: more take more memory
/// than a machine has.
inline constexpr std::int64_t kMostPairs = 4'000'000;

struct VerifyOptions {
  enum class Transfers : std::uint8_t {
    kListed,    ///< every message is an action, as an executor needs it
    kImplicit,  ///< none is: what crosses ranks goes by itself
  };

  Transfers transfers = Transfers::kListed;
  Messages messages{};
  /// One for all stages, or one for each.
  std::vector<StageBytes> bytes{StageBytes{}};
  /// Most bytes that a rank may hold: nothing for no limit, one for all ranks, or one for each.
  std::vector<std::int64_t> memory_cap{};
};

/// Returns what is wrong; nothing where the schedule can be executed. Kinds of faults are looked
/// for in turn (values around the actions; actions that are impossible by themselves; missing and
/// repeated ones; the order in a rank; deadlock; memory), and those of the first kind that occurs
/// are returned: later ones would follow from them. Of missing actions about a hundred are named.
std::vector<Finding> find_errors(const Schedule& schedule, const VerifyOptions& options = {});

/// Throws UsageError with the first finding, and with how many more there are.
void verify(const Schedule& schedule, const VerifyOptions& options = {});

/// Whether every stage computes its weight gradients in the order of micro-batches, as the contract
/// on numerics asks (docs/design/numerics.md).
bool keeps_order_of_gradients(const Schedule& schedule);

}  // namespace trireme::schedule
