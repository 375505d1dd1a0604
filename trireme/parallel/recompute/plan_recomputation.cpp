// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/plan_recomputation.h>

#include <trireme/graph/parts/kept_bytes.h>
#include <trireme/graph/parts/patterns.h>
#include <trireme/parallel/recompute/recompute_within.h>

#include <cstddef>

namespace trireme {
namespace {

using detail::ChosenRanges;
using detail::divides_backward;
using detail::StageUnits;
using schedule::item;
using schedule::StageBytes;

StageBytes bytes_of(const graph::KeptBytes& kept, std::int64_t for_weights) {
  return {.activations = kept.kept,
          .weight_inputs = kept.kept + for_weights,
          .stage_inputs = 0,
          .rebuilding = kept.rebuilding == 0 ? 0 : kept.rebuilding + for_weights};
}

class ByPlan {
 public:
  ByPlan(const graph::Graph& graph, const std::vector<int>& boundaries,
         const schedule::Schedule& schedule)
      : graph_(graph), boundaries_(boundaries), schedule_(schedule) {
    made_.parts.resize(static_cast<std::size_t>(schedule.num_stages()));
  }

  void by_name(const std::vector<std::string>& patterns) {
    graph::check_patterns(graph_, patterns);
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      item(made_.parts, stage) =
          graph::parts_of(graph_, item(boundaries_, stage), item(boundaries_, stage + 1), patterns);
    }
  }

  void by_memory(std::int64_t limit) {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) choose(rank, limit);
  }

  Recomputation finished() const {
    Recomputation done = made_;
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      const int begin = item(boundaries_, stage);
      const int end = item(boundaries_, stage + 1);
      const graph::KeptBytes kept = graph::kept_bytes(graph_, begin, end, item(done.parts, stage));
      done.bytes.push_back(bytes_of(kept, bytes_for_weights(stage)));
      done.flops += kept.cost.flops;
    }
    if (!is_chosen_) done.flops_at_least = done.flops;
    return done;
  }

 private:
  void choose(int rank, std::int64_t limit) {
    std::vector<StageUnits> stages;
    std::vector<graph::PieceLine> pieces;
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      if (schedule_.rank_of(stage) != rank) continue;
      const int begin = item(boundaries_, stage);
      const int end = item(boundaries_, stage + 1);
      const graph::PieceLine& piece = pieces.emplace_back(graph::line_of(graph_, begin, end));
      stages.push_back({.number = stage,
                        .line = piece.line,
                        .inputs = graph::kept_bytes(graph_, begin, end, {}).kept -
                                  graph::evaluate(piece.line, {}).kept,
                        .for_weights = bytes_for_weights(stage)});
    }
    const ChosenRanges chosen = detail::recompute_within(stages, schedule_, limit);
    if (!chosen.is_chosen) return;
    is_chosen_ = true;
    made_.flops_at_least += chosen.flops_at_least;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      item(made_.parts, stages[i].number) = pieces[i].parts_of(chosen.of_stages[i]);
    }
  }

  std::int64_t bytes_for_weights(int stage) const {
    if (!divides_backward(schedule_, stage)) return 0;
    return graph::bytes_for_weights(graph_, item(boundaries_, stage), item(boundaries_, stage + 1));
  }

  const graph::Graph& graph_;
  const std::vector<int>& boundaries_;
  const schedule::Schedule& schedule_;
  Recomputation made_;
  bool is_chosen_ = false;
};

}  // namespace

Recomputation plan_recomputation(const graph::Graph& graph, const std::vector<int>& boundaries,
                                 const schedule::Schedule& schedule, const Plan& plan) {
  ByPlan by_plan(graph, boundaries, schedule);
  if (!plan.recompute.empty()) by_plan.by_name(plan.recompute);
  if (plan.activation_bytes > 0) by_plan.by_memory(plan.activation_bytes);
  return by_plan.finished();
}

}  // namespace trireme
