// SPDX-License-Identifier: Apache-2.0
// One walk through the actions of all ranks, under the engine's rules for messages. The verifier
// asks it whether every rank gets to its end, the timeline when.
//
// What a rank does next depends on its own list alone, and whether it may go on depends on counts
// that only grow (messages sent, messages received). So nothing that one rank does takes away what
// another could do, and every walk ends in the same place: one that gets to the end proves that all
// do.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::schedule {

/// How an engine carries messages from one rank to another.
struct Messages {
  enum class Matching : std::uint8_t {
    kInOrder,  ///< a receive takes the oldest message from that rank
    kByTag,    ///< a receive takes the message of its edge and micro-batch
  };

  /// How many messages from one rank to another may be sent and not yet received; one more send
  /// waits. 0 is rendezvous: a send ends with its receive. Nothing: any number.
  std::optional<int> outstanding{};
  Matching matching = Matching::kInOrder;
};

/// An action in time, milliseconds from the beginning of the step. Waiting comes before `begin`.
struct Span {
  Action action;
  double begin = 0;
  double end = 0;
};

/// Where a rank stands still for ever.
struct Blocked {
  enum class Reason : std::uint8_t {
    kNotSent,      ///< its message is not sent yet
    kOther,        ///< the oldest message from that rank is another
    kNotReceived,  ///< as many messages as the engine allows are not received yet
    kNotComputed,  ///< where no messages are listed: what it needs is not computed yet
  };

  int rank = 0;
  std::size_t position = 0;  ///< of the action in the rank's list
  Reason reason = Reason::kNotSent;
  int waits_for = 0;  ///< the rank from which help would have to come
  Action other{};     ///< kOther: the receive that the oldest message is for
};

struct Walk {
  /// Of every rank, as far as it came.
  std::vector<std::vector<Span>> ranks;
  /// By rank; empty where all came to their end.
  std::vector<Blocked> blocked;
};

/// Walks through a schedule whose stages, micro-batches and edges exist and that has each action
/// at most once. Where no messages are listed, what crosses ranks goes by itself: it is there
/// `communication` after it was computed.
Walk walk(const Schedule& schedule, const Messages& messages, const Times& times);

}  // namespace trireme::schedule
