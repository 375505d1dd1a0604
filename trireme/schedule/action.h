// SPDX-License-Identifier: Apache-2.0
// An action: what one rank of a pipeline does at one point of a step. A schedule is lists of
// actions. docs/formats/schedule.md defines their text form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::schedule {

/// The kinds of actions, with their code in the text form.
enum class ActionKind : std::uint8_t {
  kForward,         ///< `F`: the forward pass
  kBackward,        ///< `B`: the backward pass: gradients of inputs and of weights together
  kBackwardInput,   ///< `I`: only the gradients of inputs
  kBackwardWeight,  ///< `W`: only the gradients of weights, after those of the inputs
  kSend,            ///< `S`: starts a send; the tensors must not change until it has finished
  kReceive,         ///< `R`: waits for a message
  kGather,          ///< `gather`: gathers the sharded parameters of a stage
  kFree,            ///< `free`: frees the gathered parameters, keeping this rank's shard
  kReduce,          ///< `reduce`: reduces gradients over the data-parallel ranks
  kRecompute,       ///< `recompute`: repeats the forward pass for the activations of backward
  kOffload,         ///< `offload`: moves the kept activations to the host's memory
  kLoad,            ///< `load`: moves them back
  kStep,            ///< `step`: runs the optimizer for the parameters of a stage
};

/// The number of kinds of actions.
inline constexpr std::size_t kNumActionKinds = 13;

/// One action. Stages, micro-batches and ranks are counted from 0.
struct Action {
  /// The value of `micro_batch` and `peer` if they do not apply.
  static constexpr int kNone = -1;

  ActionKind kind = ActionKind::kForward;  ///< the kind
  int stage = 0;                           ///< the stage that it belongs to
  /// The micro-batch. kNone for gather, free, step, and a reduction of all micro-batches together.
  int micro_batch = kNone;
  /// The stage at the other end of a message, otherwise kNone. Activations go to a later stage and
  /// gradients to an earlier one.
  int peer = kNone;

  bool operator==(const Action&) const = default;
};

/// Returns true for F, B, I, W and recompute.
bool computes(ActionKind kind);
/// Returns true for B and I, which compute the gradient for the previous stage.
bool gives_input_gradient(ActionKind kind);
/// Returns true for B and W, which compute gradients of weights.
bool gives_weight_gradient(ActionKind kind);
/// Returns true for a send and a receive.
bool is_message(ActionKind kind);
/// Returns true if a send or receive carries gradients, and false if it carries activations.
bool carries_gradients(const Action& message);

/// Returns the name of a kind: `forward`, `input backward`, `send`, and so on.
std::string_view name_of(ActionKind kind);

/// Returns the text form of an action: `F0.3`, `S0.3>1`, `R1.3<0`, `gather0`, `reduce0.3`.
std::string to_text(const Action& action);

/// Parses the text form of an action. Returns std::nullopt if `text` is not an action.
std::optional<Action> parse_action(std::string_view text);

/// Describes an action in words: `forward of micro-batch 3 in stage 0`, `send of the gradients of
/// micro-batch 3 from stage 1 to stage 0`.
std::string describe(const Action& action);

}  // namespace trireme::schedule
