// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/passes.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

namespace trireme::schedule {
namespace {

// Gives each rank a new list, made by `write(action, new list)` for each of its actions in turn.
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

}  // namespace

Schedule without_messages(const Schedule& schedule) {
  return rewritten(schedule, [](const Action& action, std::vector<Action>& actions) {
    if (!is_message(action.kind)) actions.push_back(action);
  });
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
  for (const int stage : stages) {
    if (stage >= 0 && stage < schedule.num_stages()) continue;
    throw UsageError(join_message("stage ", stage, " is to be recomputed, but stages are 0 to ",
                                  schedule.num_stages() - 1),
                     "name stages of the schedule");
  }
  return rewritten(schedule, [stages](const Action& action, std::vector<Action>& actions) {
    if (gives_input_gradient(action.kind) && std::ranges::count(stages, action.stage) > 0) {
      actions.push_back({ActionKind::kRecompute, action.stage, action.micro_batch});
    }
    actions.push_back(action);
  });
}

Schedule with_gathering(const Schedule& schedule, GatherFor gather_for) {
  Schedule result = schedule;
  for (auto& actions : result.ranks) {
    std::vector<Action> used;  // where parameters are needed
    std::ranges::copy_if(actions, std::back_inserter(used),
                         [](const Action& action) { return needs_parameters(action.kind); });
    std::map<int, std::size_t> uses_left;  // by stage
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
  std::map<int, int> left;  // weight gradients to come, by stage
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
