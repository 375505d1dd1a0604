// SPDX-License-Identifier: Apache-2.0
// Proves that a schedule can be executed: it is complete, its order respects dependencies, it
// cannot deadlock under the engine's rules for messages, and it fits into memory. Verification
// precedes every execution and simulation: docs/design/schedules.md.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/verifier/memory.h>
#include <trireme/schedule/walk.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::schedule {

/// One fault of a schedule.
struct Finding {
  /// The rank whose list is wrong; std::nullopt if the schedule as a whole is wrong.
  std::optional<int> rank{};
  /// The position of the action in the list, from 0; std::nullopt if an action is missing.
  std::optional<std::size_t> position{};
  /// The complete message for people, including rank and action, such as `rank 1, action 3 (F1.2):
  /// comes before R1.2<0 (action 5), on which it depends`.
  std::string sentence;
};

/// Returns a finding about an action of a rank.
Finding finding_at(const Schedule& schedule, int rank, std::size_t position,
                   const std::string& what);

/// The maximum number of pairs of stage and micro-batch in a schedule, and of edge and micro-batch.
/// Larger schedules would exceed the memory of any machine.
inline constexpr std::int64_t kMostPairs = 4'000'000;

/// The conditions that a schedule must fulfil.
struct VerifyOptions {
  /// The representation of transfers between ranks.
  enum class Transfers : std::uint8_t {
    kListed,    ///< every message is an action, as execution requires
    kImplicit,  ///< there are no messages; results reach other ranks by themselves
  };

  /// The representation of transfers between ranks.
  Transfers transfers = Transfers::kListed;
  /// The engine's rules for messages.
  Messages messages{};
  /// The memory of one micro-batch in a stage: one value for all stages, or one per stage.
  std::vector<StageBytes> bytes{StageBytes{}};
  /// The maximum number of bytes that a rank may hold: empty for no limit, one value for all ranks,
  /// or one per rank.
  std::vector<std::int64_t> memory_cap{};
};

/// Returns the faults of a schedule; an empty list means that it can be executed. Kinds of faults
/// are checked in this order: values around the actions, actions invalid by themselves, missing and
/// repeated actions, order within a rank, deadlock, memory. Only faults of the first kind that
/// occurs are returned, because later ones would be consequences. About a hundred missing actions
/// are listed at most.
std::vector<Finding> find_errors(const Schedule& schedule, const VerifyOptions& options = {});

/// Throws UsageError with the first fault and the number of further ones, unless there is none.
void verify(const Schedule& schedule, const VerifyOptions& options = {});

/// Returns true if every stage computes its weight gradients in the order of micro-batches, as the
/// numerics contract requires (docs/design/numerics.md).
bool keeps_order_of_gradients(const Schedule& schedule);

}  // namespace trireme::schedule
