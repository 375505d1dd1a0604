// SPDX-License-Identifier: Apache-2.0
// The hierarchy engine: one engine inside each host, composed with one between hosts.
#pragma once

#include <trireme/comm/adapter/engine_context.h>
#include <trireme/comm/engines/hierarchy/host_map.h>

#include <cstdint>

namespace trireme::comm {

struct HierarchyOptions {
  /// The number of ranks per host that carry slices of a large message to other hosts in parallel.
  /// 0 for as many as the smallest host has ranks.
  int leaders = 0;
  /// Messages with fewer bytes are carried by one leader.
  std::int64_t one_leader_below = 32'768;
  /// True to make receiving from any rank possible. Messages inside a host are slower then.
  bool receive_from_any = false;
};

/// Connects the ranks of each host by `inside`, and the leaders with the same number by `across`.
/// Also connects all ranks by `across`, for all-to-all and messages between hosts. A single host
/// needs `inside` only. Collective over the ranks of the context; blocks up to its deadline. All
/// ranks must give the same hosts and options.
/// @param host_of_rank for each rank of the context, a number that it shares with the other ranks
/// of its host.
/// @throws UsageError if `host_of_rank` does not have a number for each rank.
/// @throws CommError that names the connection that failed.
c10::intrusive_ptr<c10d::Backend> connect_hierarchy(const EngineContext& context,
                                                    std::span<const int> host_of_rank,
                                                    const Engine& inside, const Engine& across,
                                                    const HierarchyOptions& options = {});

/// Returns the order in which a hierarchy adds. It is rank order inside each host and then host
/// order, if `inside` keeps rank order for hosts of these sizes. It is rank order if every host has
/// one rank.
SummationOrder summation_order(const HostMap& hosts, const Engine& inside);

/// Returns the engine `hierarchy`: shared memory inside hosts, and EngineContext::engine_across
/// between them. EngineContext::machines tells the hosts apart.
Engine hierarchical_engine();

}  // namespace trireme::comm
