// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/verifier/positions.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::schedule {
namespace {

// A schedule with more missing actions is wrong altogether, and nobody reads a longer list.
constexpr std::size_t kMostMissing = 100;

Finding missing(const Schedule& schedule, const Action& action, const std::string& why) {
  const int rank = schedule.rank_of(action.stage);
  return {.rank = rank,
          .sentence = join_message("rank ", rank, ": ", to_text(action), " is missing, the ",
                                   describe(action), why)};
}

}  // namespace

// Fills the tables. An action that occurs again keeps its first position.
Positions::Positions(const Schedule& schedule)
    : schedule_(schedule), has_gathers_(schedule.rank_of_stage.size(), false) {
  const std::size_t stages = schedule.rank_of_stage.size();
  const auto micro_batches = static_cast<std::size_t>(schedule.micro_batches);
  for (std::size_t kind = 0; kind < kNumActionKinds; ++kind) {
    by_pair_.at(kind).assign(stages * micro_batches, kAbsent);
    by_stage_.at(kind).assign(stages, kAbsent);
  }
  for (auto& positions : by_edge_) positions.assign(schedule.edges.size() * micro_batches, kAbsent);
  for (std::size_t edge = 0; edge < schedule.edges.size(); ++edge) {
    edges_[{schedule.edges[edge].from, schedule.edges[edge].to}] = edge;
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto& actions = item(schedule.ranks, rank);
    for (std::size_t position = 0; position < actions.size(); ++position) {
      const Action& action = actions[position];
      if (action.kind == ActionKind::kGather || action.kind == ActionKind::kFree) {
        item(has_gathers_, action.stage) = true;
        continue;
      }
      Position& slot = slot_of(action);
      if (slot != kAbsent) {
        repeated_.push_back(
            finding_at(schedule, rank, position,
                       join_message("comes again; it is action ", slot, " already")));
      } else {
        slot = static_cast<Position>(position);
      }
    }
  }
}

std::size_t Positions::pair(int stage, int micro_batch) const {
  return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
         static_cast<std::size_t>(micro_batch);
}

Positions::Position Positions::of(ActionKind kind, int stage, int micro_batch) const {
  return by_pair_.at(static_cast<std::size_t>(kind))[pair(stage, micro_batch)];
}

// At most one of the two exists; kAbsent is smaller than any position.
Positions::Position Positions::backward_of(int stage, int micro_batch) const {
  return std::max(of(ActionKind::kBackward, stage, micro_batch),
                  of(ActionKind::kBackwardInput, stage, micro_batch));
}

Positions::Position Positions::weight_gradient_of(int stage, int micro_batch) const {
  return std::max(of(ActionKind::kBackward, stage, micro_batch),
                  of(ActionKind::kBackwardWeight, stage, micro_batch));
}

Positions::Position Positions::message(std::size_t edge, int micro_batch, MessageEnd end) const {
  return by_edge_.at(end)[edge * static_cast<std::size_t>(schedule_.micro_batches) +
                          static_cast<std::size_t>(micro_batch)];
}

Positions::Position& Positions::slot_of(const Action& action) {
  if (is_message(action.kind)) {
    const std::size_t edge = edges_.at(std::minmax(action.stage, action.peer));
    const bool is_send = action.kind == ActionKind::kSend;
    const MessageEnd end = carries_gradients(action)
                               ? (is_send ? kGradientsSent : kGradientsReceived)
                               : (is_send ? kActivationsSent : kActivationsReceived);
    return by_edge_.at(end)[edge * static_cast<std::size_t>(schedule_.micro_batches) +
                            static_cast<std::size_t>(action.micro_batch)];
  }
  const auto kind = static_cast<std::size_t>(action.kind);
  if (action.micro_batch == Action::kNone) return item(by_stage_.at(kind), action.stage);
  return by_pair_.at(kind)[pair(action.stage, action.micro_batch)];
}

std::vector<Finding> Positions::find_missing(bool has_messages) const {
  std::vector<Finding> findings;
  find_missing_computation(findings);
  if (has_messages) {
    find_missing_messages(findings);
  } else if (lists_messages(schedule_)) {
    findings.push_back({.sentence = "there are messages among the actions, expected none"});
  }
  find_missing_reductions(findings);
  find_missing_steps(findings);
  return findings;
}

void Positions::find_missing_computation(std::vector<Finding>& findings) const {
  using enum ActionKind;
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    const int rank = schedule_.rank_of(stage);
    for (int micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch) {
      if (findings.size() >= kMostMissing) return;
      const Action action = {.stage = stage, .micro_batch = micro_batch};
      const auto named = [&action](ActionKind kind) {
        return Action{.kind = kind, .stage = action.stage, .micro_batch = action.micro_batch};
      };
      const auto at = [&](ActionKind kind) { return of(kind, stage, micro_batch); };
      if (at(kForward) == kAbsent) findings.push_back(missing(schedule_, named(kForward), ""));
      for (const ActionKind part : {kBackwardInput, kBackwardWeight}) {
        if (at(kBackward) != kAbsent && at(part) != kAbsent) {
          findings.push_back(
              finding_at(schedule_, rank, static_cast<std::size_t>(at(part)),
                         join_message("the backward is whole already, as ",
                                      to_text(named(kBackward)), " (action ", at(kBackward), ")")));
        }
      }
      if (at(kBackward) == kAbsent) {
        const bool has_input = at(kBackwardInput) != kAbsent;
        const bool has_weight = at(kBackwardWeight) != kAbsent;
        if (!has_input && !has_weight) {
          findings.push_back(missing(schedule_, named(kBackward), ", whole or in its two parts"));
        } else if (!has_input) {
          findings.push_back(missing(schedule_, named(kBackwardInput), ""));
        } else if (!has_weight) {
          findings.push_back(missing(schedule_, named(kBackwardWeight), ""));
        }
      }
      if (at(kOffload) != kAbsent && at(kLoad) == kAbsent) {
        findings.push_back(missing(schedule_, named(kLoad), ", which were offloaded"));
      }
      if (at(kLoad) != kAbsent && at(kOffload) == kAbsent) {
        findings.push_back(missing(schedule_, named(kOffload), ", which are loaded"));
      }
    }
  }
}

void Positions::find_missing_messages(std::vector<Finding>& findings) const {
  for (std::size_t index = 0; index < schedule_.edges.size(); ++index) {
    const Edge& edge = schedule_.edges[index];
    if (!schedule_.crosses_ranks(edge)) continue;
    for (int micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch) {
      if (findings.size() >= kMostMissing) return;
      const auto expect = [&](MessageEnd end, ActionKind kind, int stage, int peer) {
        if (message(index, micro_batch, end) != kAbsent) return;
        findings.push_back(missing(schedule_, {kind, stage, micro_batch, peer}, ""));
      };
      expect(kActivationsSent, ActionKind::kSend, edge.from, edge.to);
      expect(kActivationsReceived, ActionKind::kReceive, edge.to, edge.from);
      expect(kGradientsSent, ActionKind::kSend, edge.to, edge.from);
      expect(kGradientsReceived, ActionKind::kReceive, edge.from, edge.to);
    }
  }
}

// A stage may reduce all micro-batches together, or each one by itself, but not mix both.
void Positions::find_missing_reductions(std::vector<Finding>& findings) const {
  const auto kind = static_cast<std::size_t>(ActionKind::kReduce);
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    const auto begin = by_pair_.at(kind).begin() + static_cast<std::ptrdiff_t>(pair(stage, 0));
    const auto end = begin + schedule_.micro_batches;
    const auto first = std::find_if(begin, end, [](Position at) { return at != kAbsent; });
    if (first == end) continue;
    if (const Position whole = item(by_stage_.at(kind), stage); whole != kAbsent) {
      findings.push_back(finding_at(schedule_, schedule_.rank_of(stage),
                                    static_cast<std::size_t>(*first),
                                    join_message("all micro-batches are reduced by reduce", stage,
                                                 " (action ", whole, ") already")));
      continue;
    }
    for (auto at = begin; at != end; ++at) {
      if (*at != kAbsent) continue;
      findings.push_back(missing(schedule_,
                                 {.kind = ActionKind::kReduce,
                                  .stage = stage,
                                  .micro_batch = static_cast<int>(at - begin)},
                                 ", as those of other micro-batches are reduced"));
    }
  }
}

// Optimizer steps are optional, but either all stages have one or none.
void Positions::find_missing_steps(std::vector<Finding>& findings) const {
  const auto& steps = by_stage_.at(static_cast<std::size_t>(ActionKind::kStep));
  if (std::ranges::all_of(steps, [](Position at) { return at == kAbsent; })) return;
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    if (item(steps, stage) != kAbsent) continue;
    findings.push_back(missing(schedule_, {.kind = ActionKind::kStep, .stage = stage},
                               ", as other stages have theirs"));
  }
}

void Positions::expect_after(int rank, Position action, Position needed,
                             std::vector<Finding>& findings) const {
  if (action == kAbsent || needed == kAbsent || action > needed) return;
  findings.push_back(
      finding_at(schedule_, rank, static_cast<std::size_t>(action),
                 join_message("comes before ", to_text(item(item(schedule_.ranks, rank), needed)),
                              " (action ", needed, "), on which it depends")));
}

std::vector<Finding> Positions::find_misplaced(bool has_messages) const {
  std::vector<Finding> findings;
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch) {
      check_pair(stage, micro_batch, findings);
    }
    check_end_of_stage(stage, findings);
  }
  for (std::size_t edge = 0; edge < schedule_.edges.size(); ++edge) {
    for (int micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch) {
      check_edge(edge, micro_batch, has_messages, findings);
    }
  }
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank) check_parameters(rank, findings);
  return findings;
}

// Actions that do not occur have the position kAbsent, for which expect_after() finds nothing.
void Positions::check_pair(int stage, int micro_batch, std::vector<Finding>& findings) const {
  using enum ActionKind;
  const auto expect = [&](Position action, Position needed) {
    expect_after(schedule_.rank_of(stage), action, needed, findings);
  };
  const auto at = [&](ActionKind kind) { return of(kind, stage, micro_batch); };
  const Position backward = backward_of(stage, micro_batch);
  for (const ActionKind kind : {kRecompute, kOffload, kLoad}) {
    expect(at(kind), at(kForward));
    expect(backward, at(kind));
  }
  expect(at(kLoad), at(kOffload));
  expect(at(kRecompute), at(kLoad));  // recomputation starts from what was offloaded
  expect(backward, at(kForward));
  expect(at(kBackwardWeight), at(kBackwardInput));
  expect(at(kReduce), weight_gradient_of(stage, micro_batch));
}

// Without messages, only stages on the same rank have an order within one list; the walk checks the
// others.
void Positions::check_edge(std::size_t index, int micro_batch, bool has_messages,
                           std::vector<Finding>& findings) const {
  const auto [from, to] = schedule_.edges[index];
  const int before = schedule_.rank_of(from);
  const int after = schedule_.rank_of(to);
  const Position forward = of(ActionKind::kForward, from, micro_batch);
  const Position next_forward = of(ActionKind::kForward, to, micro_batch);
  const Position backward = backward_of(from, micro_batch);
  const Position next_backward = backward_of(to, micro_batch);
  if (before == after) {
    expect_after(before, next_forward, forward, findings);
    expect_after(before, backward, next_backward, findings);
  } else if (has_messages) {
    const auto at = [&](MessageEnd end) { return message(index, micro_batch, end); };
    expect_after(before, at(kActivationsSent), forward, findings);
    expect_after(after, next_forward, at(kActivationsReceived), findings);
    expect_after(after, at(kGradientsSent), next_backward, findings);
    expect_after(before, backward, at(kGradientsReceived), findings);
  }
}

void Positions::check_end_of_stage(int stage, std::vector<Finding>& findings) const {
  const int rank = schedule_.rank_of(stage);
  const Position reduce = item(by_stage_.at(static_cast<std::size_t>(ActionKind::kReduce)), stage);
  const Position step = item(by_stage_.at(static_cast<std::size_t>(ActionKind::kStep)), stage);
  Position last_gradient = kAbsent;
  Position last_reduce = reduce;
  for (int micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch) {
    last_gradient = std::max(last_gradient, weight_gradient_of(stage, micro_batch));
    last_reduce = std::max(last_reduce, of(ActionKind::kReduce, stage, micro_batch));
  }
  expect_after(rank, reduce, last_gradient, findings);
  expect_after(rank, step, last_gradient, findings);
  expect_after(rank, step, last_reduce, findings);
}

// A stage without any gather keeps its parameters whole, and needs no check.
void Positions::check_parameters(int rank, std::vector<Finding>& findings) const {
  std::vector<bool> is_whole(schedule_.rank_of_stage.size(), false);
  const auto& actions = item(schedule_.ranks, rank);
  for (std::size_t position = 0; position < actions.size(); ++position) {
    const auto& [kind, stage, micro_batch, peer] = actions[position];
    if (kind == ActionKind::kGather) {
      if (item(is_whole, stage)) {
        findings.push_back(finding_at(schedule_, rank, position,
                                      "the parameters are whole already: expected free" +
                                          std::to_string(stage) + " between"));
      }
      item(is_whole, stage) = true;
    } else if (kind == ActionKind::kFree) {
      if (!item(is_whole, stage)) {
        findings.push_back(finding_at(
            schedule_, rank, position,
            "the parameters are not whole: expected gather" + std::to_string(stage) + " before"));
      }
      item(is_whole, stage) = false;
    } else if (computes(kind) && kind != ActionKind::kBackwardWeight && item(has_gathers_, stage) &&
               !item(is_whole, stage)) {
      findings.push_back(finding_at(
          schedule_, rank, position,
          "it needs the parameters: expected gather" + std::to_string(stage) + " before"));
    }
  }
}

}  // namespace trireme::schedule
