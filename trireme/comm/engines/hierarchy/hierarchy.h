// SPDX-License-Identifier: Apache-2.0
// One engine inside each host composed with one across hosts.
#pragma once

#include <trireme/comm/adapter/engine_context.h>
#include <trireme/comm/engines/hierarchy/host_map.h>

#include <cstdint>

namespace trireme::comm {

struct HierarchyOptions {
  /// How many ranks of a host carry slices of a large message across, side by side; 0 for as many
  /// as the smallest host has ranks.
  int leaders = 0;
  /// Messages of fewer bytes cross by one leader.
  std::int64_t one_leader_below = 32'768;
  /// Makes receiving from any rank possible; messages inside a host are slower then.
  bool receive_from_any = false;
};

/// Connects the ranks of each host by `inside`, the leaders of one place by `across`, and all ranks
/// by `across` too (for all-to-all and messages between hosts); one host needs `inside` only.
/// Collective over the ranks of the context, blocking up to its deadline. All ranks give the same
/// hosts and options.
/// @param host_of_rank for each rank of the context a number that its host's other ranks have too.
/// Throws UsageError where that is not one for each rank, and CommError that names the connection.
c10::intrusive_ptr<c10d::Backend> connect_hierarchy(const EngineContext& context,
                                                    std::span<const int> host_of_rank,
                                                    const Engine& inside, const Engine& across,
                                                    const HierarchyOptions& options = {});

/// In which order a hierarchy sums. Rank order inside each host, then host order, where `inside`
/// keeps rank order for hosts of these sizes; rank order outright where every host has one rank.
SummationOrder summation_order(const HostMap& hosts, const Engine& inside);

/// `hierarchy`: shared memory inside hosts, told apart by EngineContext::machines, and across them
/// EngineContext::engine_across.
Engine hierarchical_engine();

}  // namespace trireme::comm
