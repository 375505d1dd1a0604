// SPDX-License-Identifier: Apache-2.0
#include <bench/multi/pipeline/prediction.h>

#include <trireme/schedule/passes.h>
#include <trireme/schedule/timeline.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

namespace bench {
namespace {

using trireme::pipeline::StepReport;
using trireme::schedule::ActionKind;
using trireme::schedule::item;
using trireme::schedule::Schedule;
using trireme::schedule::Span;
using trireme::schedule::StageTimes;
using trireme::schedule::Times;

class Mean {
 public:
  void add(double value) {
    sum_ += value;
    ++count_;
  }
  /// 0 where there was nothing.
  double value() const { return count_ > 0 ? sum_ / count_ : 0; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

// A message on its way, in milliseconds.
struct Message {
  std::size_t edge = 0;
  double sent = 0;   // begin of the send
  double ready = 0;  // from when its receiver did nothing but wait
  double received = 0;
};

using MessageKey = std::tuple<int, int, int>;  // from, to, micro-batch

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
        const auto [first, last] = std::minmax(action.stage, action.peer);
        const auto edge = std::ranges::find_if(
            schedule.edges, [first = first, last = last](const auto& candidate) {
              return candidate.from == first && candidate.to == last;
            });
        messages.push_back({.edge = static_cast<std::size_t>(edge - schedule.edges.begin()),
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
  for (const auto& [edge, sent, ready, received] : all) {
    if (ready <= sent) waited[edge].add(received - sent);
  }
  Mean receive;
  for (const auto& [edge, sent, ready, received] : all) {
    if (ready > sent + waited[edge].value()) receive.add(received - ready);
  }
  times.receive = receive.value();
  // The end of a receive is that of both.
  times.communication.clear();
  for (const Mean& edge : waited) {
    times.communication.push_back(std::max(edge.value() - times.receive, 0.0));
  }
}

}  // namespace

Times measured_times(const Schedule& schedule, const std::vector<StepReport>& reports,
                     const std::vector<std::vector<double>>& optimizer_times) {
  std::vector<std::array<Mean, trireme::schedule::kNumActionKinds>> means(
      static_cast<std::size_t>(schedule.num_stages()));
  const auto mean_of = [&](int stage, ActionKind kind) -> Mean& {
    return item(means, stage)[static_cast<std::size_t>(kind)];
  };
  Mean send;
  for (const StepReport& report : reports) {
    for (const std::vector<Span>& spans : report.timeline.ranks) {
      for (const auto& [action, begin, end] : spans) {
        mean_of(action.stage, action.kind).add(end - begin);
        if (action.kind == ActionKind::kSend) send.add(end - begin);
      }
    }
  }
  Times times;
  times.send = send.value();
  times.stages.clear();
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const int rank = schedule.rank_of(stage);
    Mean optimizer;
    for (const double time : item(optimizer_times, rank)) optimizer.add(time);
    const auto on_rank = std::ranges::count(schedule.rank_of_stage, rank);
    StageTimes& its = times.stages.emplace_back();
    its.forward = mean_of(stage, ActionKind::kForward).value();
    its.backward = mean_of(stage, ActionKind::kBackward).value();
    its.backward_input = mean_of(stage, ActionKind::kBackwardInput).value();
    its.backward_weight = mean_of(stage, ActionKind::kBackwardWeight).value();
    its.step = optimizer.value() / static_cast<double>(on_rank);
  }
  set_message_times(schedule, reports, times);
  return times;
}

double predicted_step_time(const Schedule& schedule, const Times& times) {
  using trireme::schedule::Messages;
  return trireme::schedule::simulate(trireme::schedule::with_steps(schedule), times,
                                     {.outstanding = {}, .matching = Messages::Matching::kByTag})
      .step_time;
}

}  // namespace bench
