// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/verifier/verify.h>

#include <trireme/base/error.h>
#include <trireme/schedule/verifier/actions.h>

#include <algorithm>

namespace trireme::schedule {
namespace {

// Describes what a blocked rank waits for.
std::string wait_of(const Schedule& schedule, const Blocked& blocked) {
  const Action& action = item(schedule.ranks, blocked.rank)[blocked.position];
  const std::string where = join_message("rank ", blocked.rank, " waits at action ",
                                         blocked.position, " (", to_text(action), ") ");
  switch (blocked.reason) {
    case Blocked::Reason::kNotSent:
      return join_message(where, "for rank ", blocked.waits_for, " to send");
    case Blocked::Reason::kNotReceived:
      return join_message(where, "for rank ", blocked.waits_for, " to receive");
    case Blocked::Reason::kNotComputed:
      return join_message(where, "for what stages of rank ", blocked.waits_for, " compute");
    case Blocked::Reason::kOther:
      break;
  }
  return join_message(where, "while the oldest message from rank ", blocked.waits_for,
                      " is the one for ", to_text(blocked.other));
}

// Follows the chain of waiting ranks until a rank repeats: that cycle is the deadlock.
std::vector<Blocked> circle_of(const std::vector<Blocked>& blocked) {
  std::vector<Blocked> way;
  const Blocked* at = blocked.data();
  while (at != nullptr) {
    const auto met = std::ranges::find(way, at->rank, &Blocked::rank);
    if (met != way.end()) return {met, way.end()};
    way.push_back(*at);
    if (at->reason == Blocked::Reason::kOther) return {*at};  // that rank waits for nobody else
    const auto next = std::ranges::find(blocked, at->waits_for, &Blocked::rank);
    at = next == blocked.end() ? nullptr : &*next;
  }
  return way;
}

std::vector<Finding> find_deadlock(const Schedule& schedule, const Messages& messages) {
  const Walk walked = walk(schedule, messages, Times{});
  if (walked.blocked.empty()) return {};
  const std::vector<Blocked> circle = circle_of(walked.blocked);
  const Blocked& first = circle.front();
  std::string sentence =
      first.reason == Blocked::Reason::kOther ? "messages in another order: " : "deadlock: ";
  for (const Blocked& blocked : circle) {
    sentence += (&blocked == &first ? "" : ", ") + wait_of(schedule, blocked);
  }
  return {{.rank = first.rank, .position = first.position, .sentence = sentence}};
}

std::vector<Finding> find_too_much(const Schedule& schedule, const VerifyOptions& options) {
  const auto& caps = options.memory_cap;
  if (caps.empty()) return {};
  if (caps.size() != 1 && caps.size() != schedule.ranks.size()) {
    throw UsageError(join_message("there are memory caps of ", caps.size(),
                                  " ranks, expected 1 or ", schedule.num_ranks()),
                     "give one for all ranks, or one for each");
  }
  std::vector<Finding> findings;
  const auto peaks = peak_memory(schedule, options.bytes);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const RankMemory& peak = item(peaks, rank);
    const std::int64_t cap = item(caps, caps.size() == 1 ? 0 : rank);
    if (peak.peak_bytes <= cap) continue;
    findings.push_back(
        finding_at(schedule, rank, peak.peak_position,
                   join_message("after it the rank holds ", peak.peak_bytes,
                                " bytes for backward, at most ", cap, " are allowed")));
  }
  return findings;
}

}  // namespace

std::vector<Finding> find_errors(const Schedule& schedule, const VerifyOptions& options) {
  if (options.messages.outstanding && *options.messages.outstanding < 0) {
    throw UsageError(
        join_message("outstanding messages are ", *options.messages.outstanding, ", expected 0"),
        "0 is rendezvous, nothing is any number");
  }
  if (auto findings = find_wrong_frame(schedule); !findings.empty()) return findings;
  const bool is_listed = options.transfers == VerifyOptions::Transfers::kListed;
  if (auto findings = find_wrong_actions(schedule, is_listed); !findings.empty()) return findings;
  if (auto findings = find_deadlock(schedule, options.messages); !findings.empty()) return findings;
  return find_too_much(schedule, options);
}

void verify(const Schedule& schedule, const VerifyOptions& options) {
  const std::vector<Finding> findings = find_errors(schedule, options);
  if (findings.empty()) return;
  const std::string more =
      findings.size() == 1 ? "" : join_message(" (and ", findings.size() - 1, " more)");
  throw UsageError(join_message("schedule '", schedule.name,
                                "' cannot be executed: ", findings.front().sentence, more),
                   "actions count from 0 in the list of their rank; docs/design/schedules.md says "
                   "what a schedule must be");
}

bool keeps_order_of_gradients(const Schedule& schedule) {
  std::vector<int> last(schedule.rank_of_stage.size(), -1);
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (!gives_weight_gradient(action.kind)) continue;
      if (action.micro_batch < item(last, action.stage)) return false;
      item(last, action.stage) = action.micro_batch;
    }
  }
  return true;
}

}  // namespace trireme::schedule
