// SPDX-License-Identifier: Apache-2.0
// What is put into a schedule after a generator has ordered its computation: messages, backwards in
// two parts, recomputation, offloading, parameters that are whole for a while only, reductions and
// steps. Each takes a schedule and returns another; messages come last, since they go where
// computation needs them.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/walk.h>

#include <cstdint>
#include <span>

namespace trireme::schedule {

/// Puts sends and receives into a schedule that has none, so that it cannot deadlock under
/// `messages`. Each send comes right after what it sends; each receive right before what needs it,
/// after those of older messages from the same rank, which are there before it anyway. Where so few
/// messages may be outstanding that this would deadlock, send and receive stand at one point of one
/// order of all actions that every rank keeps to; receives then come earlier than they are needed.
/// Throws UsageError where the schedule is wrong or has messages.
Schedule with_messages(const Schedule& schedule, const Messages& messages = {});

/// Takes sends and receives out.
Schedule without_messages(const Schedule& schedule);

/// Keeps the actions of the first `micro_batches` alone, and those of none. Throws UsageError for a
/// number below 1, and for more than there are.
Schedule with_first(const Schedule& schedule, int micro_batches);

/// Parts every backward into its input part and, right after it, its weight part: the gradient is
/// on its way earlier.
Schedule with_split_backward(const Schedule& schedule);

/// Recomputes what forward of these stages has not kept, right before each backward or its input
/// part. Throws UsageError for a stage that does not exist.
Schedule with_recomputation(const Schedule& schedule, std::span<const int> stages);

/// Moves what forward of these stages has kept to host memory until its backward, or the
/// recomputation for it, begins. For copies to go on beside computation, offload comes after
/// `ahead` computations of the rank (forwards, backwards and parts of them, recomputations) that
/// follow the forward, and load before the `ahead` that precede the first use. A micro-batch for
/// which no computation lies between the two stays where it is: it would be back before its memory
/// had served another. Goes after recomputation and before messages. Throws UsageError for a stage
/// that does not exist, and a negative `ahead`.
Schedule with_offloading(const Schedule& schedule, std::span<const int> stages, int ahead = 1);

enum class GatherFor : std::uint8_t {
  kStep,        ///< once, from the first use of a stage in the step to the last
  kMicroBatch,  ///< for each run of actions of one stage
};

/// Gathers and frees the parameters of every stage around the actions that use them (forward,
/// recomputation, backward and its input part).
Schedule with_gathering(const Schedule& schedule, GatherFor gather_for);

enum class ReduceAfter : std::uint8_t {
  kStage,       ///< once, after the last weight gradient of a stage
  kMicroBatch,  ///< after each weight gradient
};

/// Reduces the gradients of every stage over data ranks.
Schedule with_reduction(const Schedule& schedule, ReduceAfter reduce_after);

/// Steps the optimizer at the end of every rank, for each of its stages in order.
Schedule with_steps(const Schedule& schedule);

}  // namespace trireme::schedule
