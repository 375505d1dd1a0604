// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/times.h>

#include <trireme/base/error.h>

#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace trireme::schedule {
namespace {

void check_count(std::string_view what, std::size_t found, std::size_t expected) {
  // A single value applies to all.
  if (found == 1 || found == expected) return;
  throw UsageError(
      join_message("there are times of ", found, " ", what, ", expected 1 or ", expected),
      "give one for all, or one for each in their order");
}

void check_time(std::string_view name, double time) {
  if (std::isfinite(time) && time >= 0) return;
  throw UsageError(join_message("the time of ", name, " is ", time, ", expected milliseconds"),
                   "times are finite and not negative");
}

}  // namespace

const StageTimes& times_of(const Times& times, int stage) {
  return item(times.stages, times.stages.size() == 1 ? 0 : stage);
}

double duration_of(const Times& times, const Action& action) {
  const StageTimes& stage = times_of(times, action.stage);
  switch (action.kind) {
    case ActionKind::kForward:
      return stage.forward;
    case ActionKind::kBackward:
      return stage.backward.value_or(stage.backward_input + stage.backward_weight);
    case ActionKind::kBackwardInput:
      return stage.backward_input;
    case ActionKind::kBackwardWeight:
      return stage.backward_weight;
    case ActionKind::kSend:
      return times.send;
    case ActionKind::kReceive:
      return times.receive;
    case ActionKind::kGather:
      return stage.gather;
    case ActionKind::kFree:
      return stage.free;
    case ActionKind::kReduce:
      return stage.reduce;
    case ActionKind::kRecompute:
      return stage.recompute.value_or(stage.forward);
    case ActionKind::kOffload:
      return stage.offload;
    case ActionKind::kLoad:
      return stage.load;
    case ActionKind::kStep:
      return stage.step;
  }
  return 0;
}

void check_times(const Times& times, int num_stages, std::size_t num_edges) {
  check_count("stages", times.stages.size(), static_cast<std::size_t>(num_stages));
  check_count("edges", times.communication.size(), num_edges);
  for (const StageTimes& stage : times.stages) {
    for (const auto& [name, time] : std::initializer_list<std::pair<std::string_view, double>>{
             {"forward", stage.forward},
             {"input backward", stage.backward_input},
             {"weight backward", stage.backward_weight},
             {"backward", stage.backward.value_or(0)},
             {"recomputation", stage.recompute.value_or(0)},
             {"gathering", stage.gather},
             {"freeing", stage.free},
             {"reduction", stage.reduce},
             {"offloading", stage.offload},
             {"loading", stage.load},
             {"a copy", stage.copy},
             {"the step", stage.step}}) {
      check_time(name, time);
    }
  }
  for (const double time : times.communication) check_time("communication", time);
  check_time("sending", times.send);
  check_time("receiving", times.receive);
}

}  // namespace trireme::schedule
