// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/walk.h>

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::schedule {
namespace {

constexpr double kNotYet = -1;

struct Message {
  int from = 0;  // stages
  int to = 0;
  int micro_batch = 0;
  double arrival = 0;

  bool is_of(const Action& receive) const {
    return from == receive.peer && to == receive.stage && micro_batch == receive.micro_batch;
  }
};

// The messages from one rank to another.
struct Channel {
  std::vector<Message> waiting;  // sent but not received, oldest first
  std::vector<double> received;  // the time of each receive
  std::size_t num_sent = 0;
};

// A stage whose result another stage needs, and the duration of the transfer.
struct Source {
  int stage = 0;
  double communication = 0;
};

class Walker {
 public:
  Walker(const Schedule& schedule, const Messages& messages, const Times& times)
      : schedule_(schedule),
        messages_(messages),
        times_(times),
        lists_messages_(lists_messages(schedule)),
        now_(schedule.ranks.size(), 0),
        forward_(count(), kNotYet),
        backward_(count(), kNotYet),
        offloaded_(count(), 0),
        loaded_(count(), 0),
        offloads_end_(schedule.ranks.size(), 0),
        loads_end_(schedule.ranks.size(), 0),
        before_(schedule.rank_of_stage.size()),
        after_(schedule.rank_of_stage.size()) {
    walk_.ranks.resize(schedule.ranks.size());
    for (std::size_t edge = 0; edge < schedule.edges.size(); ++edge) {
      const auto [from, to] = schedule.edges[edge];
      const double time = times.communication[times.communication.size() == 1 ? 0 : edge];
      const double wait = schedule.crosses_ranks({from, to}) ? time : 0;
      item(before_, to).push_back({from, wait});
      item(after_, from).push_back({to, wait});
    }
  }

  Walk run() {
    // Each rank advances as far as it can, until none can advance any more. The order of ranks does
    // not change the result; see walk.h.
    bool has_moved = true;
    while (has_moved) {
      has_moved = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
        while (const Action* action = next_of(rank)) {
          if (attempt(rank, *action)) break;
          has_moved = true;
        }
      }
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (const Action* action = next_of(rank)) walk_.blocked.push_back(*attempt(rank, *action));
    }
    return std::move(walk_);
  }

 private:
  std::size_t count() const {
    return schedule_.rank_of_stage.size() * static_cast<std::size_t>(schedule_.micro_batches);
  }

  std::size_t index(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }

  const Action* next_of(int rank) const {
    const std::size_t position = item(walk_.ranks, rank).size();
    return position < item(schedule_.ranks, rank).size() ? &item(schedule_.ranks, rank)[position]
                                                         : nullptr;
  }

  Blocked blocked(int rank, Blocked::Reason reason, int waits_for, const Action& other = {}) const {
    return {rank, item(walk_.ranks, rank).size(), reason, waits_for, other};
  }

  // Runs the action, or returns the reason why it cannot run yet.
  std::optional<Blocked> attempt(int rank, const Action& action) {
    if (action.kind == ActionKind::kSend) return send(rank, action);
    if (action.kind == ActionKind::kReceive) return receive(rank, action);
    double begin = item(now_, rank);
    if (!lists_messages_) {
      if (const auto obstacle = wait_for_inputs(rank, action, begin)) return obstacle;
    }
    if (action.kind == ActionKind::kRecompute || gives_input_gradient(action.kind)) {
      begin = std::max(begin, loaded_[index(action.stage, action.micro_batch)]);
    }
    finish(rank, action, begin);
    return std::nullopt;
  }

  std::optional<Blocked> wait_for_inputs(int rank, const Action& action, double& begin) const {
    const bool is_forward = action.kind == ActionKind::kForward;
    if (!is_forward && !gives_input_gradient(action.kind)) return std::nullopt;
    for (const Source& source : item(is_forward ? before_ : after_, action.stage)) {
      const double end =
          (is_forward ? forward_ : backward_)[index(source.stage, action.micro_batch)];
      if (end == kNotYet) {
        return blocked(rank, Blocked::Reason::kNotComputed, schedule_.rank_of(source.stage));
      }
      begin = std::max(begin, end + source.communication);
    }
    return std::nullopt;
  }

  void finish(int rank, const Action& action, double begin) {
    double end = begin + duration_of(times_, action);
    if (action.kind == ActionKind::kOffload) end = std::max(end, offload(rank, action));
    item(now_, rank) = end;
    item(walk_.ranks, rank).push_back({action, begin, end});
    if (action.kind == ActionKind::kForward) {
      forward_[index(action.stage, action.micro_batch)] = end;
    } else if (action.kind == ActionKind::kLoad) {
      const std::size_t at = index(action.stage, action.micro_batch);
      double& last = item(loads_end_, rank);
      last = std::max({last, begin, offloaded_[at]}) + times_of(times_, action.stage).copy;
      loaded_[at] = last;
    } else if (gives_input_gradient(action.kind)) {
      backward_[index(action.stage, action.micro_batch)] = end;
    }
  }

  // Returns when the copy of an offload ends. It began as soon as there was something to copy.
  double offload(int rank, const Action& action) {
    const std::size_t at = index(action.stage, action.micro_batch);
    double& last = item(offloads_end_, rank);
    last = std::max(last, forward_[at]) + times_of(times_, action.stage).copy;
    offloaded_[at] = last;
    return last;
  }

  double communication(const Action& message) const {
    for (const Source& source : item(before_, std::max(message.stage, message.peer))) {
      if (source.stage == std::min(message.stage, message.peer)) return source.communication;
    }
    return 0;
  }

  bool is_rendezvous() const { return messages_.outstanding == 0; }

  std::optional<Blocked> send(int rank, const Action& action) {
    const int to = schedule_.rank_of(action.peer);
    Channel& channel = channels_[{rank, to}];
    double begin = item(now_, rank);
    if (is_rendezvous()) {
      const Action* const other = next_of(to);
      const Message message = {action.stage, action.peer, action.micro_batch};
      if (other == nullptr || other->kind != ActionKind::kReceive || !message.is_of(*other)) {
        return blocked(rank, Blocked::Reason::kNotReceived, to);
      }
      begin = std::max(begin, item(now_, to));
      const double arrival = begin + communication(action);
      finish(rank, action, begin);
      item(now_, rank) = item(walk_.ranks, rank).back().end = std::max(item(now_, rank), arrival);
      finish(to, *other, arrival);
      return std::nullopt;
    }
    if (messages_.outstanding) {
      const auto most = static_cast<std::size_t>(*messages_.outstanding);
      if (channel.num_sent >= most) {
        const std::size_t needed = channel.num_sent - most;  // this message must be received first
        if (channel.received.size() <= needed) {
          return blocked(rank, Blocked::Reason::kNotReceived, to);
        }
        begin = std::max(begin, channel.received[needed]);
      }
    }
    ++channel.num_sent;
    channel.waiting.push_back({action.stage, action.peer, action.micro_batch,
                               begin + std::max(times_.send, communication(action))});
    finish(rank, action, begin);
    return std::nullopt;
  }

  std::optional<Blocked> receive(int rank, const Action& action) {
    const int from = schedule_.rank_of(action.peer);
    if (is_rendezvous()) {  // the sender runs both actions
      const Action* const other = next_of(from);
      if (other != nullptr && other->kind == ActionKind::kSend && other->peer == action.stage &&
          other->stage == action.peer && other->micro_batch == action.micro_batch) {
        return send(from, *other);
      }
      return blocked(rank, Blocked::Reason::kNotSent, from);
    }
    Channel& channel = channels_[{from, rank}];
    auto message = std::ranges::find_if(
        channel.waiting, [&action](const Message& sent) { return sent.is_of(action); });
    if (messages_.matching == Messages::Matching::kInOrder && !channel.waiting.empty() &&
        message != channel.waiting.begin()) {
      const Message& oldest = channel.waiting.front();
      return blocked(rank, Blocked::Reason::kOther, from,
                     {ActionKind::kReceive, oldest.to, oldest.micro_batch, oldest.from});
    }
    if (message == channel.waiting.end()) return blocked(rank, Blocked::Reason::kNotSent, from);
    finish(rank, action, std::max(item(now_, rank), message->arrival));
    channel.waiting.erase(message);
    channel.received.push_back(item(walk_.ranks, rank).back().begin);
    return std::nullopt;
  }

  const Schedule& schedule_;
  const Messages& messages_;
  const Times& times_;
  bool lists_messages_;
  Walk walk_;
  std::vector<double> now_;
  std::vector<double> forward_;   // the end of each forward, by stage and micro-batch
  std::vector<double> backward_;  // the end of each gradient of an input
  // The end of the copies of each stage and micro-batch, and of the last ones of each rank.
  std::vector<double> offloaded_;
  std::vector<double> loaded_;
  std::vector<double> offloads_end_;
  std::vector<double> loads_end_;
  std::vector<std::vector<Source>> before_;
  std::vector<std::vector<Source>> after_;
  std::map<std::pair<int, int>, Channel> channels_;
};

}  // namespace

Walk walk(const Schedule& schedule, const Messages& messages, const Times& times) {
  return Walker(schedule, messages, times).run();
}

}  // namespace trireme::schedule
