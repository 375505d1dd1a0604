// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/generators/search.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/generators/greedy.h>
#include <trireme/schedule/generators/order.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/timeline.h>
#include <trireme/schedule/verifier/actions.h>
#include <trireme/schedule/verifier/verify.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace trireme::schedule {
namespace {

// Returns the time that the search minimises.
double cost_of(const SearchOptions& options, const Schedule& schedule) {
  const Timeline timeline = simulate_verified(schedule, options.times);
  return options.goal == SearchOptions::Goal::kStepTime ? timeline.step_time
                                                        : timeline.longest_rank_time;
}

// Throws UsageError if a rank cannot even hold one micro-batch in each of its stages. Above this
// limit, the greedy rule never gets stuck for lack of memory.
void check_memory(const SearchOptions& options) {
  const int num_ranks = std::ranges::max(options.rank_of_stage) + 1;
  std::vector<std::int64_t> needed(static_cast<std::size_t>(num_ranks), 0);
  for (std::size_t stage = 0; stage < options.rank_of_stage.size(); ++stage) {
    const StageBytes& bytes = options.bytes[options.bytes.size() == 1 ? 0 : stage];
    item(needed, options.rank_of_stage[stage]) += std::max(bytes.activations, bytes.weight_inputs);
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto& caps = options.memory_cap;
    const std::int64_t cap = item(caps, caps.size() == 1 ? 0 : rank);
    if (item(needed, rank) <= cap) continue;
    throw UsageError(join_message("rank ", rank, " may hold ", cap,
                                  " bytes for backward, but one micro-batch in each of its stages "
                                  "needs ",
                                  item(needed, rank)),
                     "raise the memory cap, or make micro-batches smaller");
  }
}

// Checks the options, and fills in a chain if no edges are given.
SearchOptions checked(SearchOptions options) {
  if (options.rank_of_stage.empty()) {
    throw UsageError("there are no stages to search a schedule for",
                     "give rank_of_stage, such as looped_placement(ranks, 1)");
  }
  const int num_stages = static_cast<int>(options.rank_of_stage.size());
  for (const int rank : options.rank_of_stage) {
    if (rank < num_stages) continue;
    throw UsageError(join_message("a stage is on rank ", rank, ", but there are ", num_stages,
                                  " stages, and every rank has one"),
                     "count ranks from 0 without gaps");
  }
  if (options.edges.empty()) options.edges = chain(num_stages);
  const int num_ranks = std::ranges::max(options.rank_of_stage) + 1;
  check_positive("ranks", num_ranks);
  check_counts(num_stages, options.micro_batches);
  const Schedule frame{
      .name = "search",
      .micro_batches = options.micro_batches,
      .rank_of_stage = options.rank_of_stage,
      .edges = options.edges,
      .ranks = std::vector<std::vector<Action>>(static_cast<std::size_t>(num_ranks))};
  if (const auto findings = find_wrong_frame(frame); !findings.empty()) {
    throw UsageError("no schedule can be searched: " + findings.front().sentence,
                     "see docs/design/schedules.md for what a schedule is");
  }
  check_times(options.times, frame.num_stages(), frame.edges.size());
  peak_memory(frame, options.bytes);
  if (!options.memory_cap.empty()) {
    if (options.memory_cap.size() != 1 &&
        std::cmp_not_equal(options.memory_cap.size(), num_ranks)) {
      throw UsageError(join_message("there are memory caps of ", options.memory_cap.size(),
                                    " ranks, expected 1 or ", num_ranks),
                       "give one for all ranks, or one for each");
    }
    check_memory(options);
  }
  return options;
}

bool fits(const SearchOptions& options, const Schedule& schedule) {
  if (options.memory_cap.empty()) return true;
  const auto peaks = peak_memory(schedule, options.bytes);
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    const auto& caps = options.memory_cap;
    if (peaks[rank].peak_bytes > caps[caps.size() == 1 ? 0 : rank]) return false;
  }
  return true;
}

// Returns the known schedules that match the placement and the edges and fit into memory.
std::vector<Schedule> known_schedules(const SearchOptions& options) {
  const int num_ranks = std::ranges::max(options.rank_of_stage) + 1;
  const int chunks = std::max(1, static_cast<int>(options.rank_of_stage.size()) / num_ranks);
  std::vector<Schedule> known;
  for (Schedule& schedule : std::vector<Schedule>{
           with_split_backward(interleaved(num_ranks, options.micro_batches, chunks)),
           zero_bubble_h1(num_ranks, options.micro_batches),
           zero_bubble_h2(num_ranks, options.micro_batches),
           zero_bubble_v(num_ranks, options.micro_batches)}) {
    if (schedule.rank_of_stage != options.rank_of_stage || schedule.edges != options.edges)
      continue;
    if (fits(options, schedule)) known.push_back(std::move(schedule));
  }
  return known;
}

Schedule best_found(const SearchOptions& options) {
  std::optional<Schedule> best;
  double best_cost = 0;
  const auto consider = [&](Schedule schedule) {
    const double cost = cost_of(options, schedule);
    if (best && cost >= best_cost) return;
    best = std::move(schedule);
    best_cost = cost;
  };
  for (const Schedule& schedule : known_schedules(options)) consider(schedule);
  const bool has_chunks =
      std::ranges::max(options.rank_of_stage) + 1 < static_cast<int>(options.rank_of_stage.size());
  for (const double depth : {1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 100.0}) {
    for (const int extra : {-1, 0, 1}) {
      for (const double patience : {0.0, 0.25, 0.5, 0.75, 1.0}) {
        for (const bool alternates : {false, true}) {
          for (const bool deep_first : {false, true}) {
            if (deep_first && !has_chunks) continue;  // would give the same schedule again
            auto schedule = greedy(options, {depth, extra, patience, alternates, deep_first});
            if (schedule) consider(std::move(*schedule));
          }
        }
      }
    }
  }
  TRIREME_CHECK(best.has_value());
  return std::move(*best);
}

}  // namespace

Schedule search(const SearchOptions& given) {
  const SearchOptions options = checked(given);
  Schedule best = best_found(options);
  best.name = "search";
  // A defect of the search must not reach an execution.
  verify(best, {.transfers = VerifyOptions::Transfers::kImplicit,
                .bytes = options.bytes,
                .memory_cap = options.memory_cap});
  return best;
}

}  // namespace trireme::schedule
