// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/verifier/memory.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace trireme::schedule {
namespace {

using Pair = std::pair<int, int>;  // stage and micro-batch

// Follows the memory of one rank along its list of actions.
class Holding {
 public:
  Holding(const std::vector<Action>& actions, std::span<const StageBytes> bytes) : bytes_(bytes) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute) recomputed_.insert(pair_of(action));
    }
  }

  RankMemory run(const std::vector<Action>& actions) {
    for (std::size_t position = 0; position < actions.size(); ++position) {
      if (gives_input_gradient(actions[position].kind)) rebuild(actions[position], position);
      apply(actions[position]);
      peak_.peak_forwards = std::max(peak_.peak_forwards, forwards_);
      peak_.peak_unfinished = std::max(peak_.peak_unfinished, unfinished_);
      reach(total_, position);
    }
    return peak_;
  }

 private:
  void reach(std::int64_t bytes, std::size_t position) {
    if (bytes <= peak_.peak_bytes) return;
    peak_.peak_bytes = bytes;
    peak_.peak_position = position;
  }

  const StageBytes& bytes_of(const Action& action) const {
    return item(bytes_, bytes_.size() == 1 ? 0 : action.stage);
  }

  // Accounts for a backward that recomputes a part of its activations by itself.
  void rebuild(const Action& action, std::size_t position) {
    reach(total_ - held_[pair_of(action)] + bytes_of(action).rebuilding, position);
  }

  static Pair pair_of(const Action& action) { return {action.stage, action.micro_batch}; }

  // Sets what a pair of stage and micro-batch holds, and updates the total.
  void hold(const Action& action, std::int64_t bytes) {
    std::int64_t& held = held_[pair_of(action)];
    total_ += bytes - held;
    held = bytes;
  }

  void apply(const Action& action) {
    const StageBytes& stage = bytes_of(action);
    switch (action.kind) {
      case ActionKind::kForward:
        ++forwards_;
        ++unfinished_;
        hold(action,
             recomputed_.contains(pair_of(action)) ? stage.stage_inputs : stage.activations);
        break;
      case ActionKind::kRecompute:
        hold(action, stage.stage_inputs + stage.activations);
        break;
      case ActionKind::kBackward:
        --forwards_;
        --unfinished_;
        hold(action, 0);
        break;
      case ActionKind::kBackwardInput:
        --forwards_;
        hold(action, stage.weight_inputs);
        break;
      case ActionKind::kBackwardWeight:
        --unfinished_;
        hold(action, 0);
        break;
      case ActionKind::kOffload:
        offloaded_[pair_of(action)] = held_[pair_of(action)];
        hold(action, 0);
        break;
      case ActionKind::kLoad:
        hold(action, offloaded_[pair_of(action)]);
        break;
      default:
        break;
    }
  }

  std::span<const StageBytes> bytes_;
  std::set<Pair> recomputed_;
  std::map<Pair, std::int64_t> held_;
  std::map<Pair, std::int64_t> offloaded_;
  std::int64_t total_ = 0;
  int forwards_ = 0;
  int unfinished_ = 0;
  RankMemory peak_;
};

}  // namespace

std::vector<RankMemory> peak_memory(const Schedule& schedule, std::span<const StageBytes> bytes) {
  if (bytes.size() != 1 && bytes.size() != schedule.rank_of_stage.size()) {
    throw UsageError(join_message("there are bytes of ", bytes.size(), " stages, expected 1 or ",
                                  schedule.num_stages()),
                     "give one for all stages, or one for each in their order");
  }
  std::vector<RankMemory> peaks;
  for (const auto& actions : schedule.ranks) {
    peaks.push_back(Holding(actions, bytes).run(actions));
  }
  return peaks;
}

}  // namespace trireme::schedule
