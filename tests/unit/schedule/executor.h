// SPDX-License-Identifier: Apache-2.0
// A second opinion on schedules: runs one action after the other on ranks drawn at random, with
// queues of messages between them, and looks at nothing but what has happened. Slow, and made
// without the verifier's tables.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/walk.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::schedule {

enum class Outcome { kCompleted, kWrong, kDeadlock };

class Executor {
 public:
  /// @param has_messages whether what crosses ranks is sent and received by actions.
  Executor(const Schedule& schedule, const Messages& messages, bool has_messages,
           std::uint64_t seed)
      : schedule_(schedule),
        messages_(messages),
        has_messages_(has_messages),
        random_(seed),
        next_(schedule.ranks.size(), 0) {
    for (const auto& actions : schedule.ranks) {
      for (const Action& listed : actions) ++listed_[to_text(listed)];
    }
  }

  Outcome run() {
    while (true) {
      std::vector<int> able;
      bool is_done = true;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
        if (item(next_, rank) == item(schedule_.ranks, rank).size()) continue;
        is_done = false;
        if (!is_possible(rank, current(rank))) return Outcome::kWrong;
        if (can_run(rank, current(rank))) able.push_back(rank);
      }
      if (is_done) return is_complete() ? Outcome::kCompleted : Outcome::kWrong;
      if (able.empty()) return Outcome::kDeadlock;
      const auto drawn = std::uniform_int_distribution<std::size_t>(0, able.size() - 1)(random_);
      if (!run(able[drawn], current(able[drawn]))) return Outcome::kWrong;
    }
  }

 private:
  const Action& current(int rank) const { return item(schedule_.ranks, rank)[item(next_, rank)]; }

  static std::string name(const char* kind, int stage, int micro_batch) {
    return kind + std::to_string(stage) + "." + std::to_string(micro_batch);
  }
  bool is_done(const std::string& what) const { return done_.contains(what); }
  bool forwarded(int stage, int micro_batch) const {
    return is_done(name("F", stage, micro_batch));
  }
  bool backwarded(int stage, int micro_batch) const {
    return is_done(name("B", stage, micro_batch)) || is_done(name("I", stage, micro_batch));
  }
  bool has_weight_gradient(int stage, int micro_batch) const {
    return is_done(name("B", stage, micro_batch)) || is_done(name("W", stage, micro_batch));
  }

  // Whether the action names things that exist.
  bool is_possible(int rank, const Action& action) const {
    if (action.stage < 0 || action.stage >= schedule_.num_stages()) return false;
    if (schedule_.rank_of(action.stage) != rank) return false;
    const bool is_of_stage = action.kind == ActionKind::kGather ||
                             action.kind == ActionKind::kFree || action.kind == ActionKind::kStep;
    const bool names_none = action.micro_batch == Action::kNone;
    if (is_of_stage && !names_none) return false;
    if (!is_of_stage && !(names_none && action.kind == ActionKind::kReduce) &&
        (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches)) {
      return false;
    }
    if (!is_message(action.kind)) return true;
    const Edge edge = {std::min(action.stage, action.peer), std::max(action.stage, action.peer)};
    return has_messages_ && std::ranges::count(schedule_.edges, edge) == 1 &&
           schedule_.crosses_ranks(edge);
  }

  using Message = std::tuple<int, int, int>;  // from, to, micro-batch

  bool can_run(int rank, const Action& action) {
    if (action.kind == ActionKind::kSend) {
      const int to = schedule_.rank_of(action.peer);
      if (messages_.outstanding == 0) {
        return item(next_, to) < item(schedule_.ranks, to).size() &&
               current(to) ==
                   Action{ActionKind::kReceive, action.peer, action.micro_batch, action.stage};
      }
      return !messages_.outstanding ||
             queues_[{rank, to}].size() < static_cast<std::size_t>(*messages_.outstanding);
    }
    if (action.kind == ActionKind::kReceive) {
      if (messages_.outstanding == 0) return false;  // its send does it
      const auto& queue = queues_[{schedule_.rank_of(action.peer), rank}];
      const Message wanted = {action.peer, action.stage, action.micro_batch};
      if (messages_.matching == Messages::Matching::kInOrder) {
        return !queue.empty() && queue.front() == wanted;
      }
      return std::ranges::count(queue, wanted) > 0;
    }
    if (has_messages_) return true;
    for (const Edge& edge : schedule_.edges) {  // what crosses ranks by itself
      if (!schedule_.crosses_ranks(edge)) continue;
      if (action.kind == ActionKind::kForward && edge.to == action.stage &&
          !forwarded(edge.from, action.micro_batch)) {
        return false;
      }
      if (gives_input_gradient(action.kind) && edge.from == action.stage &&
          !backwarded(edge.to, action.micro_batch)) {
        return false;
      }
    }
    return true;
  }

  // Runs the action; false where something that it needs is not there.
  bool run(int rank, const Action& action) {
    if (!may_run(action)) return false;
    const std::string text = to_text(action);
    const bool may_repeat = action.kind == ActionKind::kGather || action.kind == ActionKind::kFree;
    if (!may_repeat && !done_.insert(text).second) return false;
    ++item(next_, rank);
    if (action.kind == ActionKind::kSend) {
      const int to = schedule_.rank_of(action.peer);
      if (messages_.outstanding == 0) {
        ++item(next_, to);
        return done_
            .insert(to_text({ActionKind::kReceive, action.peer, action.micro_batch, action.stage}))
            .second;
      }
      queues_[{rank, to}].emplace_back(action.stage, action.peer, action.micro_batch);
    } else if (action.kind == ActionKind::kReceive) {
      auto& queue = queues_[{schedule_.rank_of(action.peer), rank}];
      queue.erase(std::ranges::find(queue, Message{action.peer, action.stage, action.micro_batch}));
    } else if (action.kind == ActionKind::kGather) {
      whole_.insert(action.stage);
    } else if (action.kind == ActionKind::kFree) {
      whole_.erase(action.stage);
    }
    return true;
  }

  bool inputs_are_here(const Action& action, bool is_forward) const {
    for (const Edge& edge : schedule_.edges) {
      const int own = is_forward ? edge.to : edge.from;
      const int other = is_forward ? edge.from : edge.to;
      if (own != action.stage) continue;
      if (!schedule_.crosses_ranks(edge)) {
        if (is_forward ? !forwarded(other, action.micro_batch)
                       : !backwarded(other, action.micro_batch)) {
          return false;
        }
      } else if (has_messages_ &&
                 !is_done(to_text({ActionKind::kReceive, own, action.micro_batch, other}))) {
        return false;
      }
    }
    return true;
  }

  bool has_parameters(int stage) const {
    const bool are_gathered = listed_.contains("gather" + std::to_string(stage)) ||
                              listed_.contains("free" + std::to_string(stage));
    return !are_gathered || whole_.contains(stage);
  }

  bool may_run(const Action& action) const {
    const int stage = action.stage;
    const int micro_batch = action.micro_batch;
    const auto listed = [&](const char* kind) {
      return listed_.contains(name(kind, stage, micro_batch));
    };
    const auto happened = [&](const char* kind) { return is_done(name(kind, stage, micro_batch)); };
    switch (action.kind) {
      case ActionKind::kForward:
        return inputs_are_here(action, true) && has_parameters(stage);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        for (const char* kind : {"recompute", "load", "offload"}) {
          if (listed(kind) && !happened(kind)) return false;
        }
        return forwarded(stage, micro_batch) && !backwarded(stage, micro_batch) &&
               inputs_are_here(action, false) && has_parameters(stage);
      case ActionKind::kBackwardWeight:
        return happened("I");
      case ActionKind::kSend:
        return carries_gradients(action) ? backwarded(stage, micro_batch)
                                         : forwarded(stage, micro_batch);
      case ActionKind::kReceive:
        return true;
      case ActionKind::kGather:
        return !whole_.contains(stage);
      case ActionKind::kFree:
        return whole_.contains(stage);
      case ActionKind::kReduce:
        return micro_batch == Action::kNone ? all_have_weight_gradients(stage)
                                            : has_weight_gradient(stage, micro_batch);
      case ActionKind::kRecompute:
        return forwarded(stage, micro_batch) && !backwarded(stage, micro_batch) &&
               (!listed("load") || happened("load")) && has_parameters(stage);
      case ActionKind::kOffload:
        return forwarded(stage, micro_batch) && !backwarded(stage, micro_batch);
      case ActionKind::kLoad:
        return happened("offload") && !backwarded(stage, micro_batch);
      case ActionKind::kStep:
        return all_have_weight_gradients(stage) && all_are_reduced(stage);
    }
    return false;
  }

  bool all_have_weight_gradients(int stage) const {
    for (int i = 0; i < schedule_.micro_batches; ++i) {
      if (!has_weight_gradient(stage, i)) return false;
    }
    return true;
  }

  bool all_are_reduced(int stage) const {
    const std::string whole = "reduce" + std::to_string(stage);
    if (listed_.contains(whole)) return is_done(whole);
    int num_listed = 0;
    int num_done = 0;
    for (int i = 0; i < schedule_.micro_batches; ++i) {
      num_listed += listed_.contains(name("reduce", stage, i)) ? 1 : 0;
      num_done += is_done(name("reduce", stage, i)) ? 1 : 0;
    }
    return num_listed == num_done;
  }

  bool is_complete() const {
    int steps = 0;
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      steps += is_done("step" + std::to_string(stage)) ? 1 : 0;
      int reductions = 0;
      for (int i = 0; i < schedule_.micro_batches; ++i) {
        const bool is_split = is_done(name("I", stage, i)) && is_done(name("W", stage, i));
        const bool has_parts = is_done(name("I", stage, i)) || is_done(name("W", stage, i));
        const bool is_whole = is_done(name("B", stage, i));
        if (!forwarded(stage, i) || is_whole == is_split || (is_whole && has_parts)) return false;
        if (is_done(name("offload", stage, i)) != is_done(name("load", stage, i))) return false;
        reductions += is_done(name("reduce", stage, i)) ? 1 : 0;
      }
      const bool has_all = is_done("reduce" + std::to_string(stage));
      if (reductions != 0 && (has_all || reductions != schedule_.micro_batches)) return false;
    }
    if (steps != 0 && steps != schedule_.num_stages()) return false;
    if (!has_messages_) return true;
    for (const Edge& edge : schedule_.edges) {
      if (!schedule_.crosses_ranks(edge)) continue;
      for (int i = 0; i < schedule_.micro_batches; ++i) {
        for (const Action& needed : {Action{ActionKind::kSend, edge.from, i, edge.to},
                                     Action{ActionKind::kReceive, edge.to, i, edge.from},
                                     Action{ActionKind::kSend, edge.to, i, edge.from},
                                     Action{ActionKind::kReceive, edge.from, i, edge.to}}) {
          if (!is_done(to_text(needed))) return false;
        }
      }
    }
    return true;
  }

  const Schedule& schedule_;
  const Messages& messages_;
  bool has_messages_;
  std::mt19937_64 random_;
  std::vector<std::size_t> next_;
  std::map<std::string, int> listed_;
  std::set<std::string> done_;
  std::set<int> whole_;
  std::map<std::pair<int, int>, std::deque<Message>> queues_;
};

}  // namespace trireme::schedule
