// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/rank_activations.h>

#include <algorithm>

namespace trireme::predict {

using schedule::Action;
using schedule::ActionKind;

ActivationMoment moment_of(const ActivationMemory& stage, double held, double beside) {
  return {.kept = beside + std::min(held, stage.kept),
          .temporary = std::max(0.0, held - stage.kept)};
}

RankActivations::RankActivations(const std::vector<Action>& actions,
                                 std::span<const StageModel> stages)
    : stages_(stages) {
  std::size_t places = 0;
  for (const Action& action : actions) {
    if (action.micro_batch >= 0) places = std::max(places, place_of(action) + 1);
  }
  recomputed_.resize(places, false);
  held_.resize(places, 0);
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kRecompute) recomputed_[place_of(action)] = true;
  }
}

double RankActivations::beside(const Action& action) const {
  return kept_ - held_[place_of(action)];
}

ActivationMoment RankActivations::largest_in(const Action& action) const {
  const bool is_forward =
      action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute;
  if (!is_forward && !schedule::gives_input_gradient(action.kind)) return {.kept = kept_};
  const ActivationMemory& memory = memory_of(action);
  return moment_of(memory, is_forward ? memory.forward_peak : memory.backward_peak, beside(action));
}

void RankActivations::end(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      hold(action, recomputed_[place_of(action)] ? 0 : memory_of(action).kept);
      break;
    case ActionKind::kRecompute:
    case ActionKind::kLoad:
      hold(action, memory_of(action).kept);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kOffload:
      hold(action, 0);
      break;
    default:
      break;
  }
}

void RankActivations::hold(const Action& action, double bytes) {
  double& held = held_[place_of(action)];
  kept_ += bytes - held;
  held = bytes;
}

double largest_on_host(const std::vector<Action>& actions, std::span<const StageModel> stages) {
  double now = 0;
  double largest = 0;
  for (const Action& action : actions) {
    const double kept = stages[static_cast<std::size_t>(action.stage)].memory.kept;
    if (action.kind == ActionKind::kOffload) now += kept;
    if (action.kind == ActionKind::kLoad) now -= kept;
    largest = std::max(largest, now);
  }
  return largest;
}

std::pair<ActivationMoment, int> largest_moment(const std::vector<Action>& actions,
                                                std::span<const StageModel> stages) {
  RankActivations activations(actions, stages);
  std::pair<ActivationMoment, int> largest = {{}, actions.empty() ? 0 : actions.front().stage};
  for (const Action& action : actions) {
    const ActivationMoment moment = activations.largest_in(action);
    if (moment.total() > largest.first.total()) largest = {moment, action.stage};
    activations.end(action);
  }
  return largest;
}

}  // namespace trireme::predict
