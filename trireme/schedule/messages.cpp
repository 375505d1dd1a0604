// SPDX-License-Identifier: Apache-2.0
// Implements `with_messages` of passes.h.
#include <trireme/base/error.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/verifier/verify.h>

#include <algorithm>
#include <compare>
#include <map>
#include <utility>

namespace trireme::schedule {
namespace {

using Channel = std::pair<int, int>;  // from one rank to another

bool is_forward(const Action& action) { return action.kind == ActionKind::kForward; }

bool is_backward(const Action& action) { return gives_input_gradient(action.kind); }

class Insertion {
 public:
  explicit Insertion(const Schedule& schedule) : schedule_(schedule), neighbours_(schedule) {}

  // Places receives as late as possible.
  Schedule late() const {
    std::map<Channel, std::vector<Action>> receives;  // in the order of the sends
    for (const auto& actions : schedule_.ranks) {
      for (const Action& action : actions) {
        for (const Action& send : sends_of(action)) {
          receives[channel_of(send)].push_back(other_end(send));
        }
      }
    }
    std::map<Channel, std::size_t> num_received;
    Schedule result = emptied();
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      auto& written = result.ranks[rank];
      for (const Action& action : schedule_.ranks[rank]) {
        for (const Action& needed : receives_of(action)) {
          const Channel channel = channel_of(other_end(needed));
          const auto& all = receives[channel];
          const auto end = std::ranges::find(all, needed) - all.begin() + 1;
          std::size_t& next = num_received[channel];
          for (; std::cmp_less(next, end); ++next) written.push_back(all[next]);
        }
        written.push_back(action);
        for (const Action& send : sends_of(action)) written.push_back(send);
      }
    }
    return result;
  }

  // Places each send and its receive at one position in a global order of all actions. The order is
  // that of time: computation is placed at its start, and a message at the end of the computation
  // whose result it carries.
  Schedule at_one_point() const {
    struct Event {
      double time = 0;
      bool is_computation = false;  // what ends at a time sorts before what begins at it
      std::size_t rank = 0;
      std::size_t position = 0;

      auto operator<=>(const Event&) const = default;
    };
    const Walk walked = walk(schedule_, {}, unit_times());
    std::vector<Event> order;
    for (std::size_t rank = 0; rank < walked.ranks.size(); ++rank) {
      for (std::size_t position = 0; position < walked.ranks[rank].size(); ++position) {
        const Span& span = walked.ranks[rank][position];
        order.push_back({span.begin, true, rank, position});
        if (!sends_of(span.action).empty()) order.push_back({span.end, false, rank, position});
      }
    }
    std::ranges::sort(order, [](const Event& a, const Event& b) { return a < b; });
    Schedule result = emptied();
    for (const Event& event : order) {
      const Action& action = schedule_.ranks[event.rank][event.position];
      if (event.is_computation) {
        result.ranks[event.rank].push_back(action);
        continue;
      }
      for (const Action& send : sends_of(action)) {
        result.ranks[event.rank].push_back(send);
        item(result.ranks, schedule_.rank_of(send.peer)).push_back(other_end(send));
      }
    }
    return result;
  }

 private:
  // Every computation takes time, so that what depends on a message begins after the end of what
  // the message carries. The order of time then respects all dependencies.
  static Times unit_times() { return {}; }

  Schedule emptied() const {
    Schedule result = schedule_;
    for (auto& actions : result.ranks) actions.clear();
    return result;
  }

  Channel channel_of(const Action& send) const {
    return {schedule_.rank_of(send.stage), schedule_.rank_of(send.peer)};
  }

  static Action other_end(const Action& message) {
    const bool is_send = message.kind == ActionKind::kSend;
    return {is_send ? ActionKind::kReceive : ActionKind::kSend, message.peer, message.micro_batch,
            message.stage};
  }

  std::vector<Action> messages_of(ActionKind kind, const Action& action,
                                  const std::vector<int>& peers) const {
    std::vector<Action> messages;
    for (const int peer : peers) {
      if (schedule_.rank_of(peer) == schedule_.rank_of(action.stage)) continue;
      messages.push_back({kind, action.stage, action.micro_batch, peer});
    }
    return messages;
  }

  std::vector<Action> sends_of(const Action& action) const {
    if (is_forward(action)) {
      return messages_of(ActionKind::kSend, action, item(neighbours_.after, action.stage));
    }
    if (!is_backward(action)) return {};
    return messages_of(ActionKind::kSend, action, item(neighbours_.before, action.stage));
  }

  std::vector<Action> receives_of(const Action& action) const {
    if (is_forward(action)) {
      return messages_of(ActionKind::kReceive, action, item(neighbours_.before, action.stage));
    }
    if (!is_backward(action)) return {};
    return messages_of(ActionKind::kReceive, action, item(neighbours_.after, action.stage));
  }

  const Schedule& schedule_;
  Neighbours neighbours_;
};

}  // namespace

Schedule with_messages(const Schedule& schedule, const Messages& messages) {
  verify(schedule, {.transfers = VerifyOptions::Transfers::kImplicit});
  const Insertion insertion(schedule);
  Schedule late = insertion.late();
  if (find_errors(late, {.messages = messages}).empty()) return late;
  Schedule result = insertion.at_one_point();
  verify(result, {.messages = messages});
  return result;
}

}  // namespace trireme::schedule
