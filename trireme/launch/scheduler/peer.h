// SPDX-License-Identifier: Apache-2.0
// A connection of the scheduler, and what is known about the other side.
#pragma once

#include <trireme/launch/scheduler/channel.h>
#include <trireme/launch/scheduler/messages.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

namespace trireme::launch {

/// One connection of the scheduler.
struct Peer {
  /// The states of a connection.
  enum class State {
    kStranger,  ///< has not introduced itself yet; nothing that it says is believed
    kMember,    ///< a worker of the run
    kSpare,     ///< waits for a place that becomes free
    kLeaving,   ///< was a member before a restart, and is to close the connection
    kRefused,   ///< was refused, and is to close the connection
  };

  /// Describes a new connection.
  Peer(Channel connection, std::string where, std::string challenge,
       std::chrono::steady_clock::time_point latest)
      : channel(std::move(connection)),
        address(std::move(where)),
        nonce(std::move(challenge)),
        deadline(latest) {}

  Channel channel;                                 ///< the connection
  std::string address{};                           ///< the address from which it came
  std::string nonce{};                             ///< the random text of the challenge
  std::chrono::steady_clock::time_point deadline;  ///< for a peer that is no member
  State state = State::kStranger;                  ///< the state
  std::uint32_t watched = 0;                       ///< the events that are polled
  Hello hello = {};                                ///< the introduction of a member
  Assignment place = {};                           ///< the place of a member
  std::set<int> ended = {};                        ///< the ranks of a member that have ended

  /// Returns true if all ranks of the member have ended.
  bool is_done() const { return static_cast<int>(ended.size()) == hello.ranks; }
};

/// Describes how a rank failed, such as `rank 3 failed first: ./train (process 4711 on host1,
/// 10.0.0.2) exited with code 3`.
std::string describe_failure(const Peer& peer, const RankEnded& end);

/// Describes a worker whose connection was closed although not all of its ranks had ended.
std::string describe_loss(const Peer& peer);

}  // namespace trireme::launch
