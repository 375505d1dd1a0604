// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/measured_times.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace trireme::pipeline {
namespace {

using schedule::Action;
using schedule::ActionKind;
using schedule::item;
using schedule::Schedule;
using schedule::Span;
using schedule::StageTimes;
using schedule::Times;

class Mean {
 public:
  void add(double value) {
    sum_ += value;
    ++count_;
  }
  bool is_there() const { return count_ > 0; }
  /// Returns 0 if nothing was added.
  double value() const { return count_ > 0 ? sum_ / count_ : 0; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

// The times of one message, in milliseconds.
struct Message {
  std::size_t edge = 0;
  double sent = 0;      // when the send began
  double ready = 0;     // when its receiver began to wait
  double received = 0;  // when it had arrived
};

using MessageKey = std::tuple<int, int, int>;  // from, to, micro-batch

std::size_t edge_of(const Schedule& schedule, const Action& message) {
  const auto [from, to] = std::minmax(message.stage, message.peer);
  const auto found = std::ranges::find(schedule.edges, schedule::Edge{.from = from, .to = to});
  return static_cast<std::size_t>(found - schedule.edges.begin());
}

std::vector<Message> messages_of(const Schedule& schedule, const StepReport& report) {
  std::map<MessageKey, double> sent;
  for (const std::vector<Span>& spans : report.timeline.ranks) {
    for (const auto& [action, begin, end] : spans) {
      if (action.kind != ActionKind::kSend) continue;
      sent[{action.stage, action.peer, action.micro_batch}] = begin;
    }
  }
  std::vector<Message> messages;
  for (const std::vector<Span>& spans : report.timeline.ranks) {
    double ready = 0;
    for (const auto& [action, begin, end] : spans) {
      if (action.kind == ActionKind::kReceive) {
        messages.push_back({.edge = edge_of(schedule, action),
                            .sent = sent.at({action.peer, action.stage, action.micro_batch}),
                            .ready = ready,
                            .received = end});
      }
      ready = end;
    }
  }
  return messages;
}

void set_message_times(const Schedule& schedule, const std::vector<StepReport>& reports,
                       Times& times) {
  std::vector<Mean> waited(schedule.edges.size());
  std::vector<Message> all;
  for (const StepReport& report : reports)
    std::ranges::copy(messages_of(schedule, report), std::back_inserter(all));
  // If the receiver waited from before the send, the time from send to arrival is that of the
  // message.
  for (const auto& [edge, sent, ready, received] : all) {
    if (ready <= sent) waited[edge].add(received - sent);
  }
  // If the message must have arrived before the receiver was ready, the rest is the receive itself.
  Mean receive;
  for (const auto& [edge, sent, ready, received] : all) {
    if (ready > sent + waited[edge].value()) receive.add(received - ready);
  }
  times.receive = receive.value();
  // `received` includes the receive itself, which is subtracted here.
  times.communication.clear();
  for (const Mean& edge : waited) {
    times.communication.push_back(std::max(edge.value() - times.receive, 0.0));
  }
}

void check_is_of(const Schedule& schedule, const StepReport& report) {
  const bool has_edges = std::ranges::all_of(schedule.ranks, [&](const auto& actions) {
    return std::ranges::all_of(actions, [&](const Action& action) {
      return !is_message(action.kind) || edge_of(schedule, action) < schedule.edges.size();
    });
  });
  const bool is_same = std::ranges::equal(
      schedule.ranks, report.timeline.ranks, [](const auto& actions, const auto& spans) {
        return std::ranges::equal(actions, spans, {}, {}, &Span::action);
      });
  if (has_edges && is_same) return;
  throw UsageError(join_message("a report is not of steps of the schedule '", schedule.name,
                                "' that was given with it"),
                   "give TrainingStep::schedule() as it was at those steps");
}

}  // namespace

Times measured_times(const Schedule& schedule, const std::vector<StepReport>& reports) {
  if (reports.empty()) {
    throw UsageError("times were asked for of no step", "give the report of one step or more");
  }
  using Means = std::array<Mean, schedule::kNumActionKinds>;
  std::vector<Means> means(static_cast<std::size_t>(schedule.num_stages()));
  const auto mean_of = [](Means& stage, ActionKind kind) -> Mean& {
    return stage[static_cast<std::size_t>(kind)];
  };
  Mean send;
  for (const StepReport& report : reports) {
    check_is_of(schedule, report);
    for (const std::vector<Span>& spans : report.timeline.ranks) {
      for (const auto& [action, begin, end] : spans) {
        mean_of(item(means, action.stage), action.kind).add(end - begin);
        if (action.kind == ActionKind::kSend) send.add(end - begin);
      }
    }
  }
  Times times;
  times.send = send.value();
  times.stages.clear();
  for (Means& stage : means) {
    const auto time_of = [&](ActionKind kind) { return mean_of(stage, kind).value(); };
    StageTimes& stage_times = times.stages.emplace_back();
    stage_times.forward = time_of(ActionKind::kForward);
    stage_times.backward_input = time_of(ActionKind::kBackwardInput);
    stage_times.backward_weight = time_of(ActionKind::kBackwardWeight);
    if (mean_of(stage, ActionKind::kBackward).is_there()) {
      stage_times.backward = time_of(ActionKind::kBackward);
      if (!mean_of(stage, ActionKind::kBackwardInput).is_there()) {
        stage_times.backward_input = stage_times.backward_weight = *stage_times.backward / 2;
      }
    }
    if (mean_of(stage, ActionKind::kRecompute).is_there()) {
      stage_times.recompute = time_of(ActionKind::kRecompute);
    }
    stage_times.offload = time_of(ActionKind::kOffload);
    stage_times.load = time_of(ActionKind::kLoad);
    stage_times.reduce = time_of(ActionKind::kReduce);
  }
  set_message_times(schedule, reports, times);
  return times;
}

}  // namespace trireme::pipeline
