// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/generators/greedy.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

namespace trireme::schedule {
namespace {

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

}  // namespace

std::optional<Schedule> greedy(const SearchOptions& options, const GreedyRule& rule) {
  return Greedy(options, rule).run();
}

}  // namespace trireme::schedule
