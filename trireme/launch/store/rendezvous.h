// SPDX-License-Identifier: Apache-2.0
// The rendezvous of all ranks over a store: either all ranks arrive, or every rank learns which
// ones are missing.
#pragma once

#include <trireme/launch/launcher_environment.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace trireme::launch {

/// The information that a rank publishes about itself.
struct PeerInfo {
  int world_size = 1;           ///< the number of ranks that this rank expects
  std::int64_t process_id = 0;  ///< its process id
  std::string host;             ///< its host name
  /// An identifier that is equal for processes that share a running kernel and its network
  /// interfaces, independent of host names.
  std::string machine;
  /// An identifier that is equal for processes of one machine that see each other's process ids.
  std::string process_space;
  /// The version of LibTorch. c10d's interface is not stable across minor versions.
  std::string torch_version;
  /// An identifier of its accelerator, equal for processes of one machine that share it; empty if
  /// it has none.
  std::string device = {};
};

/// What the ranks of a rendezvous are expected to do. For messages, and for callers whose ranks may
/// fail to come for reasons of their own.
struct Expectation {
  std::string call = "trireme::init()";  ///< the call that brings a rank here
  /// Called a few times a second with the ranks that have not come. Throws if it knows why one of
  /// them will not come.
  std::function<void(const std::vector<int>& missing)> look_at_missing = {};
};

/// Returns the information about this process.
PeerInfo own_peer_info(const Identity& identity);

/// Publishes this rank's entry, waits for those of all ranks, and returns them in the order of
/// ranks. Collective; blocks for up to `timeout`.
///
/// Throws CommError that lists the ranks that arrived and those that did not, or that names a rank
/// which ended before it arrived. Throws ConfigError if two processes claim the same rank, or ranks
/// disagree about the world size or the version of LibTorch. After a failure, the file of a file
/// store made by make_store() is removed.
/// @param store the store of the run.
/// @param identity the identity of this process.
/// @param own the entry of this rank, as returned by own_peer_info().
/// @param timeout the time to wait for all ranks.
/// @param round the number of earlier rendezvous of these processes over this store.
/// @param expectation the call that brings ranks here.
std::vector<PeerInfo> rendezvous(c10d::Store& store, const Identity& identity, const PeerInfo& own,
                                 std::chrono::milliseconds timeout, int round = 0,
                                 const Expectation& expectation = {});

/// Returns the key under which a launcher publishes that one of its ranks ended.
std::string exit_key(int rank);

}  // namespace trireme::launch
