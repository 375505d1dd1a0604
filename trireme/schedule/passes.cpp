// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/passes.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::schedule {
namespace {

// Rebuilds the list of each rank by calling `write(action, new list)` for each of its actions in
// turn.
Schedule rewritten(const Schedule& schedule,
                   const std::function<void(const Action&, std::vector<Action>&)>& write) {
  Schedule result = schedule;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    result.ranks[rank].clear();
    for (const Action& action : schedule.ranks[rank]) write(action, result.ranks[rank]);
  }
  return result;
}

bool needs_parameters(ActionKind kind) {
  return computes(kind) && kind != ActionKind::kBackwardWeight;
}

// Throws UsageError for a stage that does not exist.
// @param what the purpose for the message, as in `is to be recomputed`.
void check_stages(const Schedule& schedule, std::span<const int> stages, std::string_view what) {
  for (const int stage : stages) {
    if (stage >= 0 && stage < schedule.num_stages()) continue;
    throw UsageError(join_message("stage ", stage, " is to be ", what, ", but stages are 0 to ",
                                  schedule.num_stages() - 1),
                     "name stages of the schedule");
  }
}

// The activations of one forward, with the positions of the computations that create and first use
// them.
struct Kept {
  int stage = 0;
  int micro_batch = 0;
  std::ptrdiff_t made = 0;
  std::ptrdiff_t used = -1;  // -1 if not used yet
};

// Returns what the forwards of these stages keep, in the order of the forwards.
std::vector<Kept> kept_by(const std::vector<Action>& actions, std::span<const int> stages) {
  std::vector<Kept> all;
  std::ptrdiff_t computation = -1;
  for (const Action& action : actions) {
    if (!computes(action.kind)) continue;
    ++computation;
    if (std::ranges::count(stages, action.stage) == 0) continue;
    if (action.kind == ActionKind::kForward) {
      all.push_back(
          {.stage = action.stage, .micro_batch = action.micro_batch, .made = computation});
      continue;
    }
    const auto found = std::ranges::find_if(all, [&](const Kept& kept) {
      return kept.stage == action.stage && kept.micro_batch == action.micro_batch;
    });
    if (found != all.end() && found->used < 0) found->used = computation;
  }
  return all;
}

}  // namespace

Schedule without_messages(const Schedule& schedule) {
  return rewritten(schedule, [](const Action& action, std::vector<Action>& actions) {
    if (!is_message(action.kind)) actions.push_back(action);
  });
}

Schedule with_first(const Schedule& schedule, int micro_batches) {
  if (micro_batches < 1 || micro_batches > schedule.micro_batches) {
    throw UsageError(join_message("schedule '", schedule.name, "' is for ", schedule.micro_batches,
                                  " micro-batches, and ", micro_batches, " were asked for"),
                     "give it as many or fewer, at least one");
  }
  Schedule fewer = rewritten(schedule, [&](const Action& action, std::vector<Action>& actions) {
    if (action.micro_batch < micro_batches) actions.push_back(action);
  });
  fewer.micro_batches = micro_batches;
  return fewer;
}

Schedule with_split_backward(const Schedule& schedule) {
  return rewritten(schedule, [](const Action& action, std::vector<Action>& actions) {
    actions.push_back(action);
    if (action.kind != ActionKind::kBackward) return;
    actions.back().kind = ActionKind::kBackwardInput;
    actions.push_back({ActionKind::kBackwardWeight, action.stage, action.micro_batch});
  });
}

Schedule with_recomputation(const Schedule& schedule, std::span<const int> stages) {
  check_stages(schedule, stages, "recomputed");
  return rewritten(schedule, [stages](const Action& action, std::vector<Action>& actions) {
    if (gives_input_gradient(action.kind) && std::ranges::count(stages, action.stage) > 0) {
      actions.push_back({ActionKind::kRecompute, action.stage, action.micro_batch});
    }
    actions.push_back(action);
  });
}

Schedule with_offloading(const Schedule& schedule, std::span<const int> stages, int ahead) {
  check_stages(schedule, stages, "offloaded");
  if (ahead < 0) {
    throw UsageError(join_message("copies are to begin ", ahead, " computations ahead"),
                     "give 0 or more");
  }
  const std::ptrdiff_t beside = ahead;
  Schedule result = schedule;
  for (auto& actions : result.ranks) {
    // Keyed by the computation before which a load, or after which an offload, is placed.
    std::map<std::ptrdiff_t, Action> loads;
    std::map<std::ptrdiff_t, Action> offloads;
    for (const Kept& kept : kept_by(actions, stages)) {
      const std::ptrdiff_t gone = kept.made + beside;
      const std::ptrdiff_t back = kept.used - beside;
      // Offloading saves nothing unless at least one computation runs between the two copies.
      if (back - gone < 2) continue;
      offloads[gone] = {ActionKind::kOffload, kept.stage, kept.micro_batch};
      loads[back] = {ActionKind::kLoad, kept.stage, kept.micro_batch};
    }
    std::vector<Action> written;
    std::ptrdiff_t computation = -1;
    for (const Action& action : actions) {
      if (!computes(action.kind)) {
        written.push_back(action);
        continue;
      }
      ++computation;
      if (const auto load = loads.find(computation); load != loads.end()) {
        written.push_back(load->second);
      }
      written.push_back(action);
      if (const auto offload = offloads.find(computation); offload != offloads.end()) {
        written.push_back(offload->second);
      }
    }
    actions = std::move(written);
  }
  return result;
}

Schedule with_gathering(const Schedule& schedule, GatherFor gather_for) {
  Schedule result = schedule;
  for (auto& actions : result.ranks) {
    std::vector<Action> used;  // the actions that need parameters
    std::ranges::copy_if(actions, std::back_inserter(used),
                         [](const Action& action) { return needs_parameters(action.kind); });
    std::map<int, std::size_t> uses_left;  // for each stage
    for (const Action& action : used) ++uses_left[action.stage];
    std::set<int> whole;
    std::size_t next_use = 0;
    std::vector<Action> written;
    for (const Action& action : actions) {
      if (!needs_parameters(action.kind)) {
        written.push_back(action);
        continue;
      }
      ++next_use;
      const int stage = action.stage;
      if (whole.insert(stage).second) written.push_back({ActionKind::kGather, stage});
      written.push_back(action);
      const bool is_last = --uses_left[stage] == 0;
      const bool ends_run = next_use == used.size() || used[next_use].stage != stage;
      if (gather_for == GatherFor::kStep ? is_last : ends_run) {
        written.push_back({ActionKind::kFree, stage});
        whole.erase(stage);
      }
    }
    actions = std::move(written);
  }
  return result;
}

Schedule with_reduction(const Schedule& schedule, ReduceAfter reduce_after) {
  std::map<int, int> left;  // the number of remaining weight gradients of each stage
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) left[action.stage] += gives_weight_gradient(action.kind);
  }
  return rewritten(schedule, [&](const Action& action, std::vector<Action>& actions) {
    actions.push_back(action);
    if (!gives_weight_gradient(action.kind)) return;
    if (reduce_after == ReduceAfter::kMicroBatch) {
      actions.push_back({ActionKind::kReduce, action.stage, action.micro_batch});
    } else if (--left[action.stage] == 0) {
      actions.push_back({ActionKind::kReduce, action.stage});
    }
  });
}

Schedule with_steps(const Schedule& schedule) {
  Schedule result = schedule;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    item(result.ranks, schedule.rank_of(stage)).push_back({ActionKind::kStep, stage});
  }
  return result;
}

}  // namespace trireme::schedule
