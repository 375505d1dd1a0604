// SPDX-License-Identifier: Apache-2.0
// Walks through the actions of all ranks under the engine's rules for messages. The verifier uses
// it to check that every rank reaches its end, and the timeline to compute times.
//
// The next action of a rank depends only on its own list. It can run depending on counts that only
// grow (messages sent, messages received). So no action of one rank prevents an action of another,
// and every walk ends in the same state. If one walk reaches the end, all of them do.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::schedule {

/// The engine's rules for messages from one rank to another.
struct Messages {
  /// The way in which a receive selects its message.
  enum class Matching : std::uint8_t {
    kInOrder,  ///< a receive takes the oldest message from the other rank
    kByTag,    ///< a receive takes the message of its edge and micro-batch
  };

  /// The number of messages from one rank to another that may be sent and not yet received; a
  /// further send waits. With 0 (rendezvous), a send ends together with its receive. std::nullopt
  /// means no limit.
  std::optional<int> outstanding{};
  /// The way in which a receive selects its message.
  Matching matching = Matching::kInOrder;
};

/// An action with its time, in milliseconds from the start of the step. Waiting ends before
/// `begin`.
struct Span {
  Action action;     ///< the action
  double begin = 0;  ///< its start
  double end = 0;    ///< its end
};

/// The action at which a rank is blocked for ever.
struct Blocked {
  /// The reason for being blocked.
  enum class Reason : std::uint8_t {
    kNotSent,      ///< its message has not been sent
    kOther,        ///< the oldest message from that rank is another one
    kNotReceived,  ///< too many messages have not been received yet
    kNotComputed,  ///< without listed messages: its input has not been computed
  };

  int rank = 0;                      ///< the blocked rank
  std::size_t position = 0;          ///< the position of the action in the rank's list
  Reason reason = Reason::kNotSent;  ///< the reason
  int waits_for = 0;                 ///< the rank that would have to act
  Action other{};                    ///< for kOther: the receive of the oldest message
};

/// The result of a walk.
struct Walk {
  /// The actions of every rank, as far as the rank came.
  std::vector<std::vector<Span>> ranks;
  /// The blocked ranks in ascending order; empty if all ranks reached their end.
  std::vector<Blocked> blocked;
};

/// Walks through a schedule. All its stages, micro-batches and edges must exist, and no action may
/// occur twice. If no messages are listed, results reach other ranks by themselves, `communication`
/// after they were computed.
Walk walk(const Schedule& schedule, const Messages& messages, const Times& times);

}  // namespace trireme::schedule
