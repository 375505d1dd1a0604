// SPDX-License-Identifier: Apache-2.0
// What one rank of a pipeline does at one point of a step. A schedule is lists of these; the
// letters in which they are written are those of docs/formats/schedule.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::schedule {

enum class ActionKind : std::uint8_t {
  kForward,         ///< `F`
  kBackward,        ///< `B`: gradients of inputs and of weights at once
  kBackwardInput,   ///< `I`: gradients of inputs alone
  kBackwardWeight,  ///< `W`: gradients of weights, after the input's
  kSend,            ///< `S`: starts sending; the activations may not change until it has ended
  kReceive,         ///< `R`: waits until the message is there
  kGather,          ///< `gather`: makes the parameters of a stage whole
  kFree,            ///< `free`: keeps this rank's slice of them
  kReduce,          ///< `reduce`: sums gradients over data ranks
  kRecompute,       ///< `recompute`: forward again, for what backward needs
  kOffload,         ///< `offload`: moves what forward has kept to the host's memory
  kLoad,            ///< `load`: brings it back
  kStep,            ///< `step`: the optimizer's, for the parameters of a stage
};

inline constexpr std::size_t kNumActionKinds = 13;

/// One action. Stages, micro-batches and ranks count from 0.
struct Action {
  static constexpr int kNone = -1;

  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  /// kNone for gather, free, step, and a reduce that stands for all micro-batches.
  int micro_batch = kNone;
  /// Of a message: the stage at its other end. A later stage is given activations and gives
  /// gradients. kNone for all else.
  int peer = kNone;

  bool operator==(const Action&) const = default;
};

/// Whether the action is one of F, B, I, W and recompute.
bool computes(ActionKind kind);
/// Whether the action is B or I: what a gradient for the stage before comes from.
bool gives_input_gradient(ActionKind kind);
/// Whether the action is B or W: what a gradient of weights comes from.
bool gives_weight_gradient(ActionKind kind);
bool is_message(ActionKind kind);
/// Whether a send or receive carries gradients; else it carries activations.
bool carries_gradients(const Action& message);

/// Returns `forward`, `input backward`, `send`, and so on.
std::string_view name_of(ActionKind kind);

/// Returns `F0.3`, `S0.3>1`, `R1.3<0`, `gather0`, `reduce0.3`.
std::string to_text(const Action& action);

/// Reads what to_text writes; nothing where `text` is no action.
std::optional<Action> parse_action(std::string_view text);

/// Returns the action in words: `forward of micro-batch 3 in stage 0`, `send of the gradients of
/// micro-batch 3 from stage 1 to stage 0`.
std::string describe(const Action& action);

}  // namespace trireme::schedule
