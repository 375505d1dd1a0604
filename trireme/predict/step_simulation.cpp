// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/step_simulation.h>

#include <trireme/base/error.h>
#include <trireme/cluster/units.h>
#include <trireme/predict/rank_activations.h>
#include <trireme/schedule/timeline.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

namespace trireme::predict {
namespace {

using cluster::kMilli;
using schedule::Action;
using schedule::ActionKind;
using schedule::item;
using Kind = TaskLabel::Kind;
using Row = SimulatedSpan::Row;

// The axes along which a call exchanges parts, in words.
std::string axes_of(const OperatorCall& call) {
  std::set<std::string> axes;
  for (const Transfer& transfer : call.transfers) axes.insert(transfer.axis);
  std::string text;
  for (const std::string& axis : axes) text += (text.empty() ? "" : " and ") + axis;
  return text;
}

// Collects the spans and the memory of one rank.
class RankSpans {
 public:
  RankSpans(const SimulationInput& input, PassDetail detail, std::int64_t rank)
      : input_(input), detail_(detail) {
    made_.rank = rank;
  }

  void add(SimulatedSpan span) {
    if (span.end > span.begin) made_.spans.push_back(std::move(span));
  }

  // The last backward is slower than its action, because it reduces gradients.
  void add(MemoryMoment moment) {
    if (!made_.memory.empty()) moment.time = std::max(moment.time, made_.memory.back().time);
    made_.memory.push_back(std::move(moment));
  }

  // Adds the tasks of a pass that begins at a time.
  // @param micro_batch of the pass; none: that of the labels.
  // @param beside what other micro-batches keep.
  void add_pass(std::span<const LabelledSpan> tasks, int stage, double time,
                std::optional<int> micro_batch, double beside) {
    module_ = kNone;
    for (const LabelledSpan& task : tasks) {
      TaskLabel label = task.label;
      if (micro_batch) label.micro_batch = *micro_batch;
      const TaskSpan span = {.start = time + task.span.start, .end = time + task.span.end};
      if (label.kind == Kind::kOptimizer) {
        add({.row = Row::kComputation, .name = "optimizer", .begin = span.start, .end = span.end});
      } else if (label.kind == Kind::kGather || label.kind == Kind::kReduce) {
        exchange(label, span, stage);
      } else {
        compute(label, span, stage);
        remember(label, span.start, stage, beside);
      }
    }
  }

  SimulatedRank finish() {
    double begin = 0;
    for (const SimulatedSpan& span : made_.spans) {
      begin = &span == &made_.spans.front() ? span.begin : std::min(begin, span.begin);
    }
    // Communication does not begin in the order in which it was asked for.
    std::ranges::stable_sort(
        made_.spans, {}, [](const SimulatedSpan& span) { return std::pair(span.row, span.begin); });
    made_.spans.insert(made_.spans.begin(),
                       {.row = Row::kSteps, .name = "step", .begin = begin, .end = made_.end()});
    return std::move(made_);
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  const ModuleRecord& record() const { return input_.costs.record(); }

  void exchange(const TaskLabel& label, const TaskSpan& span, int stage) {
    const Bucket& bucket = item(item(input_.stages, stage).buckets, label.bucket);
    const bool is_gather = label.kind == Kind::kGather;
    std::string parameters = item(record().parameters, bucket.parameters.front()).name;
    if (bucket.parameters.size() > 1) {
      parameters += join_message(" and ", bucket.parameters.size() - 1, " more");
    }
    add({.row = Row::kCommunication,
         .name = join_message(is_gather ? "gather" : "reduce", " bucket ", label.bucket),
         .begin = span.start,
         .end = span.end,
         .stage = stage,
         .micro_batch = label.micro_batch,
         .bytes = is_gather ? bucket.bytes : bucket.gradient_bytes,
         .parameters = std::move(parameters)});
  }

  void compute(const TaskLabel& label, const TaskSpan& span, int stage) {
    const OperatorCall& call = record().call(label.call);
    SimulatedSpan made = {.row = Row::kComputation,
                          .begin = span.start,
                          .end = span.end,
                          .stage = stage,
                          .micro_batch = label.micro_batch,
                          .flops = label.flops};
    if (detail_ == PassDetail::kPasses) {
      made.name = label.is_backward ? "backward" : "forward";
      return add(std::move(made));
    }
    enter_module(label, call, made);
    if (label.kind == Kind::kLayouts) {
      made.name = "collectives along " + axes_of(call);
    } else if (detail_ == PassDetail::kModules) {
      return;
    } else {
      made.name = call.name;
    }
    add(std::move(made));
  }

  // Begins a span of the module around `part`, or extends that of the task before.
  void enter_module(const TaskLabel& label, const OperatorCall& call, const SimulatedSpan& part) {
    const bool goes_on = module_ != kNone && module_call_->module == call.module &&
                         module_label_.is_backward == label.is_backward &&
                         module_label_.is_repeated == label.is_repeated &&
                         module_label_.micro_batch == label.micro_batch;
    module_label_ = label;
    module_call_ = &call;
    if (goes_on) {
      made_.spans[module_].end = part.end;
      made_.spans[module_].flops += part.flops;
      return;
    }
    SimulatedSpan module = part;
    module.name = call.module.empty() ? "outside of modules" : call.module;
    if (label.is_repeated) module.name += " (recomputed)";
    module_ = made_.spans.size();
    made_.spans.push_back(std::move(module));
  }

  // Notes the largest memory of the calls of a task.
  void remember(const TaskLabel& label, double time, int stage_number, double beside) {
    if (label.first < 0) return;
    const StageModel& stage = item(input_.stages, stage_number);
    const std::vector<int>& calls = label.is_backward ? stage.work.backward : stage.work.forward;
    const std::size_t before = label.is_backward ? stage.work.forward.size() : 0;
    int largest = label.first;
    const auto held = [&](int position) {
      return stage.memory.at_calls[before + static_cast<std::size_t>(position)];
    };
    for (int position = label.first; position <= label.last; ++position) {
      if (held(position) > held(largest)) largest = position;
    }
    const double gradients =
        stage.memory.gradients_at_calls[before + static_cast<std::size_t>(largest)];
    const ActivationMoment moment = moment_of(stage.memory, held(largest) - gradients, beside);
    add({.time = time,
         .activations = moment.kept,
         .temporary = moment.temporary,
         .gradients = gradients,
         .module = record().call(item(calls, largest)).module,
         .micro_batch = label.micro_batch,
         .is_backward = label.is_backward});
  }

  const SimulationInput& input_;
  PassDetail detail_;
  SimulatedRank made_;
  std::size_t module_ = kNone;  // the span of the module that was entered last
  TaskLabel module_label_;
  const OperatorCall* module_call_ = nullptr;
};

// Adds forward, backward, waiting for exchanges, and the optimizer, which follow each other.
void add_phases(std::span<const LabelledSpan> tasks, RankSpans& spans) {
  double begin = 0;
  double end = 0;
  const TaskLabel* last = nullptr;
  const auto finish = [&] {
    if (last == nullptr) return;
    spans.add({.row = Row::kPhases,
               .name = last->is_backward ? "backward" : "forward",
               .begin = begin,
               .end = end,
               .micro_batch = last->micro_batch});
  };
  for (const auto& [label, span] : tasks) {
    if (label.kind == Kind::kGather || label.kind == Kind::kReduce) continue;
    if (label.kind == Kind::kOptimizer) {
      finish();
      spans.add({.time = end});
      spans.add({.row = Row::kPhases, .name = "communication", .begin = end, .end = span.start});
      spans.add({.row = Row::kPhases, .name = "optimizer", .begin = span.start, .end = span.end});
      return;
    }
    if (last != nullptr &&
        (last->micro_batch != label.micro_batch || last->is_backward != label.is_backward)) {
      finish();
      begin = end;
    }
    last = &label;
    end = span.end;
  }
}

// The spans of forward and backward of one micro-batch in a stage.
struct StageSpans {
  std::vector<LabelledSpan> forward{};
  std::vector<LabelledSpan> backward{};
  std::vector<LabelledSpan> last_backward{};  // with the reduction of gradients
};

class Pipeline {
 public:
  Pipeline(const SimulationInput& input, PassDetail detail, const schedule::Schedule& schedule,
           const schedule::Times& times)
      : input_(input), detail_(detail), schedule_(schedule), times_(times) {
    for (const StageModel& stage : input.stages) {
      const auto spans = [&](const PassOptions& options) {
        StagePass pass(input.costs, stage, detail);
        pass.add(options);
        return pass.spans();
      };
      stages_.push_back({.forward = spans({.has_backward = false}),
                         .backward = spans({.has_forward = false, .reduces = input.reduces_each}),
                         .last_backward = spans({.has_forward = false, .reduces = true})});
    }
  }

  // @param actions of the rank with their times.
  SimulatedRank rank(int number, const std::vector<schedule::Span>& actions,
                     std::span<const double> tails, std::span<const double> heads) const {
    RankSpans spans(input_, detail_, number * input_.rank_stride);
    RankActivations activations(item(schedule_.ranks, number), input_.stages);
    for (const schedule::Span& span : actions) {
      const bool is_last = &span == &actions.back();
      add(span, is_last && input_.costs.data_ranks() > 1, activations, spans);
    }
    const double end = actions.empty() ? 0 : actions.back().end * kMilli;
    finish(number, end, actions.empty() ? nullptr : &actions.back().action, tails, heads, spans);
    return spans.finish();
  }

 private:
  void add(const schedule::Span& span, bool reduces, RankActivations& activations,
           RankSpans& spans) const {
    const Action& action = span.action;
    const double begin = span.begin * kMilli;
    const double end = span.end * kMilli;
    spans.add({.row = Row::kPhases,
               .name = std::string(schedule::name_of(action.kind)),
               .begin = begin,
               .end = end,
               .stage = action.stage,
               .micro_batch = action.micro_batch});
    const StageSpans& stage = item(stages_, action.stage);
    if (action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward) {
      const auto& tasks = action.kind == ActionKind::kForward ? stage.forward
                          : reduces                           ? stage.last_backward
                                                              : stage.backward;
      spans.add_pass(tasks, action.stage, begin, action.micro_batch, activations.beside(action));
    } else if (schedule::computes(action.kind)) {
      add_whole(action, begin, end, activations, spans);
    }
    add_messages(action, begin, end, spans);
    const double kept = activations.kept();
    activations.end(action);
    if (activations.kept() < kept) spans.add({.time = end, .activations = activations.kept()});
  }

  // Adds a part of backward, or a recomputation, without its operators.
  void add_whole(const Action& action, double begin, double end, const RankActivations& activations,
                 RankSpans& spans) const {
    spans.add({.row = Row::kComputation,
               .name = std::string(schedule::name_of(action.kind)),
               .begin = begin,
               .end = end,
               .stage = action.stage,
               .micro_batch = action.micro_batch});
    const bool has_peak = action.kind != ActionKind::kBackwardWeight;
    const ActivationMoment moment = activations.largest_in(action);
    spans.add({.time = begin,
               .activations = moment.kept,
               .temporary = moment.temporary,
               .module = has_peak ? item(input_.stages, action.stage).memory.peak_module : "",
               .micro_batch = action.micro_batch,
               .is_backward = action.kind != ActionKind::kRecompute});
  }

  // Adds the messages that an action sends when it ends. Listed messages are sent by actions.
  void add_messages(const Action& action, double begin, double end, RankSpans& spans) const {
    for (std::size_t i = 0; i < schedule_.edges.size(); ++i) {
      const schedule::Edge& edge = schedule_.edges[i];
      if (!schedule_.crosses_ranks(edge)) continue;
      if (action.kind == ActionKind::kSend) {
        if (action.stage == edge.from && action.peer == edge.to)
          message(i, action, true, begin, spans);
        if (action.stage == edge.to && action.peer == edge.from)
          message(i, action, false, begin, spans);
      } else if (!schedule::lists_messages(schedule_)) {
        const bool is_forward = action.kind == ActionKind::kForward && action.stage == edge.from;
        const bool is_backward =
            schedule::gives_input_gradient(action.kind) && action.stage == edge.to;
        if (is_forward || is_backward) message(i, action, is_forward, end, spans);
      }
    }
  }

  void message(std::size_t number, const Action& action, bool is_forward, double time,
               RankSpans& spans) const {
    const schedule::Edge& edge = schedule_.edges[number];
    const auto& seconds = times_.communication;
    spans.add(
        {.row = Row::kMessages,
         .name = join_message(is_forward ? "activations" : "gradients", " of micro-batch ",
                              action.micro_batch, " to stage ", is_forward ? edge.to : edge.from),
         .begin = time,
         .end = time + seconds[seconds.size() == 1 ? 0 : number] * kMilli,
         .stage = action.stage,
         .micro_batch = action.micro_batch,
         .bytes = sent_bytes(item(input_.stages, edge.from).work, edge.to)});
  }

  // Adds what follows the last action: exchanges that computation does not hide, and the optimizer.
  void finish(int rank, double end, const Action* last, std::span<const double> tails,
              std::span<const double> heads, RankSpans& spans) const {
    // The reductions of the last backward are drawn with it.
    const int drawn = last != nullptr && last->kind == ActionKind::kBackward ? last->stage : -1;
    double time = end;
    const auto exchange = [&](const char* name, std::span<const double> seconds, int but) {
      const double begin = time;
      if (but >= 0) time += item(seconds, but);
      for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
        if (schedule_.rank_of(stage) != rank || stage == but) continue;
        const double next = time + item(seconds, stage);
        spans.add(
            {.row = Row::kCommunication, .name = name, .begin = time, .end = next, .stage = stage});
        time = next;
      }
      spans.add({.row = Row::kPhases, .name = "communication", .begin = begin, .end = time});
    };
    exchange("reduce gradients, as far as nothing hides it", tails, drawn);
    const double stepped = time + item(input_.optimizer_seconds, rank);
    for (const Row row : {Row::kPhases, Row::kComputation}) {
      spans.add({.row = row, .name = "optimizer", .begin = time, .end = stepped});
    }
    time = stepped;
    exchange("gather parameters for the next step, as far as nothing hides it", heads, -1);
  }

  const SimulationInput& input_;
  PassDetail detail_;
  const schedule::Schedule& schedule_;
  const schedule::Times& times_;
  std::vector<StageSpans> stages_;
};

// Files of more events than these are slow to open.
PassDetail detail_for(const SimulationInput& input) {
  std::size_t calls = 0;
  for (const StageModel& stage : input.stages) {
    calls += stage.work.forward.size() + stage.work.backward.size();
    for (const RecomputedRegion& region : stage.work.regions) {
      calls += static_cast<std::size_t>(region.last_repeated - region.first + 1);
    }
  }
  calls *= static_cast<std::size_t>(input.micro_batches);
  constexpr std::size_t kMostOperators = 50'000;
  constexpr std::size_t kMostInModules = 1'000'000;
  if (calls <= kMostOperators) return PassDetail::kOperators;
  return calls <= kMostInModules ? PassDetail::kModules : PassDetail::kPasses;
}

}  // namespace

StepSimulation::StepSimulation(const SimulationInput& input)
    : input_(input), detail_(detail_for(input)) {}

SimulatedRank StepSimulation::one_stage() const {
  StagePass pass(input_.costs, input_.stages.front(), detail_);
  for (int i = 0; i < input_.micro_batches; ++i) {
    pass.add({.gathers_at_start = i == 0,
              .reduces = i == input_.micro_batches - 1 || input_.reduces_each});
  }
  pass.add_gradient_layouts();
  pass.add_last(input_.optimizer_seconds.front());
  const std::vector<LabelledSpan> tasks = pass.spans();
  RankSpans spans(input_, detail_, 0);
  spans.add_pass(tasks, 0, 0, {}, 0);
  add_phases(tasks, spans);
  return spans.finish();
}

std::vector<SimulatedRank> StepSimulation::pipeline(const schedule::Schedule& schedule,
                                                    const schedule::Times& times,
                                                    std::span<const double> tails,
                                                    std::span<const double> heads) const {
  const schedule::Timeline timeline = schedule::simulate(schedule, times);
  const Pipeline pipeline(input_, detail_, schedule, times);
  std::vector<SimulatedRank> ranks;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    ranks.push_back(pipeline.rank(rank, item(timeline.ranks, rank), tails, heads));
  }
  return ranks;
}

bool SimulatedRank::makes_gradients() const {
  return std::ranges::any_of(memory, [](const auto& moment) { return moment.gradients > 0; });
}

const MemoryMoment& SimulatedRank::peak() const {
  TRIREME_CHECK(!memory.empty());
  return *std::ranges::max_element(memory, {}, &MemoryMoment::total);
}

double SimulatedRank::end() const {
  double end = 0;
  for (const SimulatedSpan& span : spans) {
    if (span.row != Row::kMessages) end = std::max(end, span.end);
  }
  return end;
}

}  // namespace trireme::predict
