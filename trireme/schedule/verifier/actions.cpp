// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/verifier/actions.h>

#include <trireme/base/error.h>
#include <trireme/schedule/verifier/positions.h>

#include <algorithm>
#include <cstdint>
#include <set>

namespace trireme::schedule {
namespace {

Finding about(const std::string& sentence) { return {.sentence = sentence}; }

// Returns what is wrong with one action by itself; empty if it is valid.
class ActionCheck {
 public:
  explicit ActionCheck(const Schedule& schedule) : schedule_(schedule) {
    for (const Edge& edge : schedule.edges) edges_.insert({edge.from, edge.to});
  }

  std::string operator()(int rank, const Action& action) const {
    if (action.stage < 0 || action.stage >= schedule_.num_stages()) {
      return join_message("there is no stage ", action.stage, "; stages are 0 to ",
                          schedule_.num_stages() - 1);
    }
    if (schedule_.rank_of(action.stage) != rank) {
      return join_message("stage ", action.stage, " is on rank ", schedule_.rank_of(action.stage));
    }
    if (const std::string wrong = check_micro_batch(action); !wrong.empty()) return wrong;
    return is_message(action.kind) ? check_edge(action) : std::string();
  }

 private:
  // Gather, free and step have no micro-batch, reduce may have one, and all other kinds must.
  std::string check_micro_batch(const Action& action) const {
    const bool is_none = action.micro_batch == Action::kNone;
    switch (action.kind) {
      case ActionKind::kGather:
      case ActionKind::kFree:
      case ActionKind::kStep:
        return is_none ? "" : "it stands for all micro-batches and names one";
      case ActionKind::kReduce:
        if (is_none) return "";
        break;
      default:
        break;
    }
    if (action.micro_batch >= 0 && action.micro_batch < schedule_.micro_batches) return "";
    return join_message("there is no micro-batch ", action.micro_batch, "; they are 0 to ",
                        schedule_.micro_batches - 1);
  }

  // A message needs an edge whose stages are on different ranks.
  std::string check_edge(const Action& action) const {
    const auto [from, to] = std::minmax(action.stage, action.peer);
    if (!edges_.contains({from, to})) {
      return join_message("stages ", from, " and ", to, " hand nothing to each other");
    }
    if (schedule_.crosses_ranks({from, to})) return "";
    return join_message("stages ", from, " and ", to, " are both on rank ", schedule_.rank_of(from),
                        ", so there is no message");
  }

  const Schedule& schedule_;
  std::set<std::pair<int, int>> edges_;
};

std::vector<Finding> find_impossible(const Schedule& schedule) {
  std::vector<Finding> findings;
  const ActionCheck check(schedule);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto& actions = item(schedule.ranks, rank);
    for (std::size_t position = 0; position < actions.size(); ++position) {
      const std::string wrong = check(rank, actions[position]);
      if (!wrong.empty()) findings.push_back(finding_at(schedule, rank, position, wrong));
    }
  }
  return findings;
}

}  // namespace

Finding finding_at(const Schedule& schedule, int rank, std::size_t position,
                   const std::string& what) {
  return {.rank = rank,
          .position = position,
          .sentence = join_message("rank ", rank, ", action ", position, " (",
                                   to_text(item(schedule.ranks, rank)[position]), "): ", what)};
}

std::vector<Finding> find_wrong_frame(const Schedule& schedule) {
  std::vector<Finding> findings;
  if (schedule.ranks.empty()) findings.push_back(about("there are no ranks"));
  if (schedule.rank_of_stage.empty()) findings.push_back(about("there are no stages"));
  if (schedule.micro_batches < 1) {
    findings.push_back(about(
        join_message("there are ", schedule.micro_batches, " micro-batches, expected 1 or more")));
  }
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (schedule.rank_of(stage) < 0 || schedule.rank_of(stage) >= schedule.num_ranks()) {
      findings.push_back(
          about(join_message("stage ", stage, " is on rank ", schedule.rank_of(stage), ", of ",
                             schedule.num_ranks(), " ranks")));
    }
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    if (std::ranges::count(schedule.rank_of_stage, rank) > 0) continue;
    findings.push_back(about(join_message("rank ", rank, " has no stage")));
  }
  std::set<std::pair<int, int>> known;
  for (const auto& [from, to] : schedule.edges) {
    const std::string name = join_message("edge ", from, ">", to);
    if (from < 0 || to >= schedule.num_stages() || from >= to) {
      findings.push_back(about(join_message(name, ": expected an earlier and a later stage of ",
                                            schedule.num_stages())));
    } else if (!known.insert({from, to}).second) {
      findings.push_back(about(name + " is there twice"));
    }
  }
  const auto bound = [&](std::size_t count, const char* what) {
    const std::int64_t pairs =
        static_cast<std::int64_t>(schedule.micro_batches) * static_cast<std::int64_t>(count);
    if (pairs <= kMostPairs) return;
    findings.push_back(
        about(join_message("there are ", pairs, " pairs of ", what, " and micro-batch, at most ",
                           kMostPairs, " are verified")));
  };
  bound(schedule.rank_of_stage.size(), "stage");
  bound(schedule.edges.size(), "edge");
  return findings;
}

std::vector<Finding> find_wrong_actions(const Schedule& schedule, bool has_messages) {
  std::vector<Finding> findings = find_impossible(schedule);
  if (!findings.empty()) return findings;
  // Positions assumes valid actions, so it is built only after the checks above.
  Positions positions(schedule);
  findings = positions.find_repeated();
  std::ranges::move(positions.find_missing(has_messages), std::back_inserter(findings));
  if (!findings.empty()) return findings;
  return positions.find_misplaced(has_messages);
}

}  // namespace trireme::schedule
