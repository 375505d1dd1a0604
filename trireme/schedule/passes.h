// SPDX-License-Identifier: Apache-2.0
// Transformations of schedules. After a generator has ordered the computation, they add messages,
// split backwards, recomputation, offloading, gathering of sharded parameters, reductions and
// optimizer steps. Each takes a schedule and returns a new one. Messages must be added last,
// because their position depends on the computation.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/walk.h>

#include <cstdint>
#include <span>

namespace trireme::schedule {

/// Adds sends and receives to a schedule without messages, so that it cannot deadlock under the
/// rules in `messages`. Each send directly follows the action whose result it sends. Each receive
/// directly precedes the action that needs it, after the receives of older messages from the same
/// rank.
///
/// If that would deadlock because too few messages may be outstanding, sends and receives are
/// placed differently. Each pair of send and receive then takes one position in a global order of
/// all actions, which every rank follows. Receives may then come earlier than needed.
///
/// Throws UsageError if the schedule is invalid or already has messages.
Schedule with_messages(const Schedule& schedule, const Messages& messages = {});

/// Removes sends and receives.
Schedule without_messages(const Schedule& schedule);

/// Keeps the actions of the first `micro_batches` micro-batches, and the actions without a
/// micro-batch. Throws UsageError for a number below 1 or above the number of the schedule.
Schedule with_first(const Schedule& schedule, int micro_batches);

/// Splits every backward into its input part followed directly by its weight part. The gradient can
/// then be sent earlier.
Schedule with_split_backward(const Schedule& schedule);

/// Adds recomputation for the given stages, directly before each backward or its input part. Throws
/// UsageError for a stage that does not exist.
Schedule with_recomputation(const Schedule& schedule, std::span<const int> stages);

/// Moves the kept activations of the given stages to host memory until the backward, or the
/// recomputation for it, begins.
///
/// Copies overlap with computation. Offload comes `ahead` computations of the rank after the
/// forward, and load comes `ahead` computations before the first use. (Computations are forwards,
/// backwards, their parts, and recomputations.) A micro-batch stays in memory if no computation
/// lies between the two, because offloading would then save nothing.
///
/// Apply it after recomputation and before messages. Throws UsageError for a stage that does not
/// exist, and for a negative `ahead`.
Schedule with_offloading(const Schedule& schedule, std::span<const int> stages, int ahead = 1);

/// The time for which parameters stay gathered.
enum class GatherFor : std::uint8_t {
  kStep,        ///< from the first to the last use of a stage in the step
  kMicroBatch,  ///< for each sequence of actions of one stage
};

/// Gathers the parameters of every stage before the actions that use them (forward, recomputation,
/// backward and its input part), and frees them afterwards.
Schedule with_gathering(const Schedule& schedule, GatherFor gather_for);

/// The time of gradient reductions.
enum class ReduceAfter : std::uint8_t {
  kStage,       ///< once, after the last weight gradient of a stage
  kMicroBatch,  ///< after each weight gradient
};

/// Adds reductions of the gradients of every stage over the data-parallel ranks.
Schedule with_reduction(const Schedule& schedule, ReduceAfter reduce_after);

/// Adds optimizer steps at the end of every rank, for its stages in ascending order.
Schedule with_steps(const Schedule& schedule);

}  // namespace trireme::schedule
