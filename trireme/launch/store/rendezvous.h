// SPDX-License-Identifier: Apache-2.0
// The rendezvous of all ranks over a store: everybody comes or everybody learns who did not.
#pragma once

#include <trireme/launch/launcher_environment.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace trireme::launch {

/// What a rank tells the others about itself.
struct PeerInfo {
  int world_size = 1;
  std::int64_t process_id = 0;
  std::string host;
  /// Equal for processes that share a running kernel and its network interfaces, whatever the host
  /// is called.
  std::string machine;
  /// Equal for processes of one machine that know each other's process ids.
  std::string process_space;
  /// LibTorch's version: c10d's interface is not stable across minor versions.
  std::string torch_version;
};

/// This process's own entry.
PeerInfo own_peer_info(const Identity& identity);

/// Writes this rank's entry and waits until every rank's is there; returns them by rank.
/// Collective, blocking up to `timeout`. Throws CommError that lists the ranks that came and those
/// that did not, or that names a rank which ended without coming; ConfigError where two processes
/// claim one rank, or ranks disagree about the world size or LibTorch. The file of a file store
/// that `make_store` made is gone then.
/// @param round how often these processes have met before over this store.
std::vector<PeerInfo> rendezvous(c10d::Store& store, const Identity& identity, const PeerInfo& own,
                                 std::chrono::milliseconds timeout, int round = 0);

/// Key under which a launcher publishes that a rank of it ended.
std::string exit_key(int rank);

}  // namespace trireme::launch
