// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/action.h>

#include <trireme/base/error.h>

#include <array>
#include <charconv>

namespace trireme::schedule {
namespace {

// The use of micro-batches by a kind of action.
enum class MicroBatch : std::uint8_t { kRequired, kOptional, kAbsent };

struct Word {
  std::string_view code;
  std::string_view name;
  MicroBatch micro_batch = MicroBatch::kRequired;
};

// The codes and names, in the order of ActionKind.
constexpr std::array<Word, kNumActionKinds> kWords = {{
    {"F", "forward"},
    {"B", "backward"},
    {"I", "input backward"},
    {"W", "weight backward"},
    {"S", "send"},
    {"R", "receive"},
    {"gather", "gathering of parameters", MicroBatch::kAbsent},
    {"free", "freeing of parameters", MicroBatch::kAbsent},
    {"reduce", "reduction of gradients", MicroBatch::kOptional},
    {"recompute", "recomputation"},
    {"offload", "offloading of activations"},
    {"load", "loading of activations"},
    {"step", "optimizer step", MicroBatch::kAbsent},
}};

const Word& word_of(ActionKind kind) { return kWords.at(static_cast<std::size_t>(kind)); }

// Removes a number without a sign from the front of `text` and returns it.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, char character) {
  if (!text.starts_with(character)) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<ActionKind> take_kind(std::string_view& text) {
  // The code is everything before the number of the stage: no code contains a digit.
  const std::string_view code = text.substr(0, text.find_first_of("0123456789"));
  for (std::size_t kind = 0; kind < kWords.size(); ++kind) {
    if (kWords.at(kind).code != code) continue;
    text.remove_prefix(code.size());
    return static_cast<ActionKind>(kind);
  }
  return std::nullopt;
}

}  // namespace

bool computes(ActionKind kind) {
  return kind <= ActionKind::kBackwardWeight || kind == ActionKind::kRecompute;
}

bool gives_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}

bool gives_weight_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

bool is_message(ActionKind kind) {
  return kind == ActionKind::kSend || kind == ActionKind::kReceive;
}

bool carries_gradients(const Action& message) {
  // Gradients flow from later to earlier stages.
  return (message.kind == ActionKind::kSend) == (message.peer < message.stage);
}

std::string_view name_of(ActionKind kind) { return word_of(kind).name; }

std::string to_text(const Action& action) {
  std::string text = std::string(word_of(action.kind).code) + std::to_string(action.stage);
  if (action.micro_batch != Action::kNone) text += "." + std::to_string(action.micro_batch);
  if (is_message(action.kind)) {
    text += (action.kind == ActionKind::kSend ? ">" : "<") + std::to_string(action.peer);
  }
  return text;
}

std::optional<Action> parse_action(std::string_view text) {
  const auto kind = take_kind(text);
  if (!kind) return std::nullopt;
  const auto stage = take_number(text);
  if (!stage) return std::nullopt;
  Action action = {.kind = *kind, .stage = *stage};
  const MicroBatch expected = word_of(*kind).micro_batch;
  if (take(text, '.')) {
    const auto micro_batch = take_number(text);
    if (!micro_batch || expected == MicroBatch::kAbsent) return std::nullopt;
    action.micro_batch = *micro_batch;
  } else if (expected == MicroBatch::kRequired) {
    return std::nullopt;
  }
  if (is_message(*kind)) {
    if (!take(text, *kind == ActionKind::kSend ? '>' : '<')) return std::nullopt;
    const auto peer = take_number(text);
    if (!peer || *peer == *stage) return std::nullopt;
    action.peer = *peer;
  }
  if (!text.empty()) return std::nullopt;
  return action;
}

std::string describe(const Action& action) {
  const std::string_view name = name_of(action.kind);
  if (is_message(action.kind)) {
    const bool is_send = action.kind == ActionKind::kSend;
    return join_message(name, " of the ", carries_gradients(action) ? "gradients" : "activations",
                        " of micro-batch ", action.micro_batch, " from stage ",
                        is_send ? action.stage : action.peer, " to stage ",
                        is_send ? action.peer : action.stage);
  }
  if (action.micro_batch == Action::kNone) return join_message(name, " of stage ", action.stage);
  return join_message(name, " of micro-batch ", action.micro_batch, " in stage ", action.stage);
}

}  // namespace trireme::schedule
