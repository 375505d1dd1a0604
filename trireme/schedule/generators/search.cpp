// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/generators/search.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/generators/order.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/timeline.h>
#include <trireme/schedule/verifier/actions.h>
#include <trireme/schedule/verifier/verify.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

namespace trireme::schedule {
namespace {

// The parameters of the greedy heuristic.
struct GreedyRule {
  // The number of micro-batches that a stage may be ahead of its backwards: `depth` times the
  // number of ranks from this stage to the end of the pipeline, plus `extra`.
  double depth = 1;
  int extra = 0;  // a constant added to `depth`
  // A gap is filled with a weight part if it is at least this share of the part's length.
  double patience = 0.5;
  // True to run a forward after a backward if both are possible.
  bool alternates = true;
  // True to prefer the forward of the later stage; false to prefer the one that was ready first.
  bool deep_first = true;
};

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Source {
  int stage = 0;
  double communication = 0;
};

struct Stage {
  int rank = 0;
  int most_ahead = 1;  // the maximum number of forwards without their backward
  std::vector<Source> before;
  std::vector<Source> after;
  std::vector<double> forwarded;   // the end of the forward of each micro-batch
  std::vector<double> backwarded;  // the end of the input part of each micro-batch
  StageTimes times;
  StageBytes bytes;

  int ahead() const { return static_cast<int>(forwarded.size() - backwarded.size()); }
  std::int64_t most_bytes() const { return std::max(bytes.activations, bytes.weight_inputs); }
};

struct Rank {
  double now = 0;
  bool sleeps = false;  // waits until `now`, or until something becomes ready earlier
  double asleep_since = 0;
  std::int64_t held = 0;
  std::int64_t cap = std::numeric_limits<std::int64_t>::max();
  std::vector<int> stages;          // in descending order
  std::deque<Action> weight_parts;  // not yet run
  bool has_forwarded_last = false;
  std::size_t num_left = 0;
};

// The next action of one kind, with the time at which it can run.
struct Candidate {
  int stage = -1;
  double ready = kNever;
};

// Simulates all ranks in the order of time. The rank that is free first decides by the rule, and
// knows only what has started so far.
class Greedy {
 public:
  Greedy(const SearchOptions& options, const GreedyRule& rule)
      : rule_(rule), micro_batches_(options.micro_batches) {
    schedule_ = {.name = "search",
                 .micro_batches = options.micro_batches,
                 .rank_of_stage = options.rank_of_stage,
                 .edges = options.edges};
    const int num_ranks = std::ranges::max(options.rank_of_stage) + 1;
    schedule_.ranks.resize(static_cast<std::size_t>(num_ranks));
    ranks_.resize(static_cast<std::size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (!options.memory_cap.empty()) {
        item(ranks_, rank).cap =
            item(options.memory_cap, options.memory_cap.size() == 1 ? 0 : rank);
      }
    }
    add_stages(options);
  }

  std::optional<Schedule> run() {
    while (true) {
      Rank* next = nullptr;
      bool is_done = true;
      for (Rank& rank : ranks_) {
        if (rank.num_left == 0) continue;
        is_done = false;
        if (rank.now < (next == nullptr ? kNever : next->now)) next = &rank;
      }
      if (is_done) return std::move(schedule_);
      if (next == nullptr) return std::nullopt;
      decide(*next);
    }
  }

 private:
  void add_stages(const SearchOptions& options) {
    const int num_stages = schedule_.num_stages();
    const double chunks = static_cast<double>(num_stages) / static_cast<double>(ranks_.size());
    stages_.resize(static_cast<std::size_t>(num_stages));
    for (int index = 0; index < num_stages; ++index) {
      Stage& stage = item(stages_, index);
      stage.rank = schedule_.rank_of(index);
      stage.times = times_of(options.times, index);
      stage.bytes = item(options.bytes, options.bytes.size() == 1 ? 0 : index);
      const double ahead = rule_.depth * (num_stages - index) / chunks;
      const double limit = std::min<double>(std::ceil(ahead), micro_batches_) + rule_.extra;
      stage.most_ahead = std::clamp(static_cast<int>(limit), 1, micro_batches_);
      Rank& rank = item(ranks_, stage.rank);
      rank.stages.insert(rank.stages.begin(), index);
      rank.num_left += 3 * static_cast<std::size_t>(micro_batches_);
    }
    const auto& communication = options.times.communication;
    for (std::size_t edge = 0; edge < schedule_.edges.size(); ++edge) {
      const auto [from, to] = schedule_.edges[edge];
      const double time = communication[communication.size() == 1 ? 0 : edge];
      const double wait = schedule_.crosses_ranks({from, to}) ? time : 0;
      item(stages_, to).before.push_back({from, wait});
      item(stages_, from).after.push_back({to, wait});
    }
  }

  // Returns the time at which the inputs of the next forward of a stage are ready.
  double forward_ready(const Stage& stage) const {
    double ready = 0;
    for (const Source& source : stage.before) {
      const auto& ends = item(stages_, source.stage).forwarded;
      if (ends.size() <= stage.forwarded.size()) return kNever;
      ready = std::max(ready, ends[stage.forwarded.size()] + source.communication);
    }
    return ready;
  }

  double backward_ready(const Stage& stage) const {
    if (stage.ahead() == 0) return kNever;
    double ready = 0;
    for (const Source& source : stage.after) {
      const auto& ends = item(stages_, source.stage).backwarded;
      if (ends.size() <= stage.backwarded.size()) return kNever;
      ready = std::max(ready, ends[stage.backwarded.size()] + source.communication);
    }
    return ready;
  }

  // Returns true if the forward leaves memory for one micro-batch in every later stage of the rank
  // that has none. Micro-batches that have started can then always reach their backward.
  bool leaves_room(const Rank& rank, const Stage& stage) const {
    std::int64_t needed = stage.most_bytes();
    for (const int index : rank.stages) {
      const Stage& other = item(stages_, index);
      const bool is_later = &other > &stage;
      needed += other.most_bytes() * std::max(other.ahead(), is_later ? 1 : 0);
    }
    return needed <= rank.cap;
  }

  Candidate next_forward(const Rank& rank) const {
    Candidate best;
    for (const int index : rank.stages) {
      const Stage& stage = item(stages_, index);
      if (std::cmp_equal(stage.forwarded.size(), micro_batches_) ||
          stage.ahead() >= stage.most_ahead || !leaves_room(rank, stage)) {
        continue;
      }
      const double ready = forward_ready(stage);
      const double counted = rule_.deep_first ? std::max(ready, rank.now) : ready;
      const double best_counted = rule_.deep_first ? std::max(best.ready, rank.now) : best.ready;
      if (counted < best_counted) best = {index, ready};
    }
    return best;
  }

  Candidate next_backward(const Rank& rank) const {
    Candidate best;
    for (const int index : rank.stages) {
      const double ready = backward_ready(item(stages_, index));
      if (std::max(ready, rank.now) < std::max(best.ready, rank.now)) best = {index, ready};
    }
    return best;
  }

  void decide(Rank& rank) {
    rank.sleeps = false;
    const Candidate forward = next_forward(rank);
    const Candidate backward = next_backward(rank);
    const bool can_forward = forward.ready <= rank.now;
    const bool can_backward = backward.ready <= rank.now;
    const bool has_weight_parts = !rank.weight_parts.empty();
    const bool is_full =
        can_forward && rank.held + item(stages_, forward.stage).bytes.activations > rank.cap;
    const bool prefers_forward = rule_.alternates && !rank.has_forwarded_last && !is_full;
    if (can_backward && !(can_forward && prefers_forward)) {
      const StageBytes& bytes = item(stages_, backward.stage).bytes;
      const bool fits = rank.held - bytes.activations + bytes.weight_inputs <= rank.cap;
      if (fits || !has_weight_parts) return run_backward(rank, backward.stage);
      return run_weight_part(rank);
    }
    if (can_forward) {
      return is_full ? run_weight_part(rank) : run_forward(rank, forward.stage);
    }
    const double next = std::min(forward.ready, backward.ready);
    if (has_weight_parts) {
      const double length = item(stages_, rank.weight_parts.front().stage).times.backward_weight;
      if (next - rank.now >= rule_.patience * length) return run_weight_part(rank);
    }
    rank.sleeps = true;
    rank.asleep_since = rank.now;
    rank.now = next;
  }

  void start(Rank& rank, const Action& action, double time) {
    item(schedule_.ranks, item(stages_, action.stage).rank).push_back(action);
    rank.now += time;
    --rank.num_left;
    rank.has_forwarded_last = action.kind == ActionKind::kForward;
  }

  // Wakes ranks that wait, when an input of theirs gets a known time.
  void tell(const std::vector<Source>& receivers, double end) {
    for (const Source& receiver : receivers) {
      Rank& rank = item(ranks_, item(stages_, receiver.stage).rank);
      if (!rank.sleeps) continue;
      rank.now = std::min(rank.now, std::max(rank.asleep_since, end + receiver.communication));
    }
  }

  void run_forward(Rank& rank, int index) {
    Stage& stage = item(stages_, index);
    start(rank, {ActionKind::kForward, index, static_cast<int>(stage.forwarded.size())},
          stage.times.forward);
    rank.held += stage.bytes.activations;
    stage.forwarded.push_back(rank.now);
    tell(stage.after, rank.now);
  }

  void run_backward(Rank& rank, int index) {
    Stage& stage = item(stages_, index);
    const int micro_batch = static_cast<int>(stage.backwarded.size());
    start(rank, {ActionKind::kBackwardInput, index, micro_batch}, stage.times.backward_input);
    rank.held += stage.bytes.weight_inputs - stage.bytes.activations;
    stage.backwarded.push_back(rank.now);
    rank.weight_parts.push_back({ActionKind::kBackwardWeight, index, micro_batch});
    tell(stage.before, rank.now);
  }

  void run_weight_part(Rank& rank) {
    const Action action = rank.weight_parts.front();
    rank.weight_parts.pop_front();
    // A weight part does not count for the alternation of forwards and backwards.
    const bool has_forwarded_last = rank.has_forwarded_last;
    start(rank, action, item(stages_, action.stage).times.backward_weight);
    rank.has_forwarded_last = has_forwarded_last;
    rank.held -= item(stages_, action.stage).bytes.weight_inputs;
  }

  const GreedyRule& rule_;
  int micro_batches_;
  Schedule schedule_;
  std::vector<Rank> ranks_;
  std::vector<Stage> stages_;
};

// Builds the schedule that follows from the rule, in the order of time: the rank that is free
// first decides, knowing what has started so far. Returns std::nullopt if the rule gets stuck.
std::optional<Schedule> greedy(const SearchOptions& options, const GreedyRule& rule) {
  return Greedy(options, rule).run();
}

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
