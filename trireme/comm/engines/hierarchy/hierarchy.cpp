// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/hierarchy/hierarchy.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/adapter/data_encryption.h>
#include <trireme/comm/engines/hierarchy/hierarchical_connection.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <numeric>

namespace trireme::comm {
namespace {

// Connects some ranks of the context, which are given in the order of their new ranks.
c10::intrusive_ptr<c10d::Backend> connect_part(const EngineContext& context, const Engine& engine,
                                               const std::string& name,
                                               const std::vector<int>& ranks) {
  check_encryption(engine);
  EngineContext part = context;
  part.store = c10::make_intrusive<c10d::PrefixStore>(name, context.store);
  part.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), context.rank) - ranks.begin());
  part.size = static_cast<int>(ranks.size());
  part.group_name = join_message(context.group_name, ", ", name);
  part.world_ranks.clear();
  part.machines.clear();
  for (const int rank : ranks) {
    const auto at = static_cast<std::size_t>(rank);
    if (!context.world_ranks.empty()) part.world_ranks.push_back(context.world_ranks[at]);
    if (!context.machines.empty()) part.machines.push_back(context.machines[at]);
  }
  try {
    return engine.connect(part);
  } catch (const std::exception& failure) {
    if (dynamic_cast<const Error*>(&failure) != nullptr) throw;
    throw CommError(join_message("engine ", engine.name, " could not connect rank ", context.rank,
                                 " to '", part.group_name, "', ", part.size, " ranks, within ",
                                 static_cast<double>(context.timeout.count()) / 1000,
                                 " s: ", message_of(failure)),
                    "check that the ranks reach each other; TRIREME_INTERFACE chooses the network "
                    "interface");
  }
}

const Engine* find_engine(Scope scope) {
  for (const Engine& engine : engines()) {
    if (engine.scope == scope && engine.unavailable_because().empty()) return &engine;
  }
  return nullptr;
}

// Returns the engine between hosts: the one that is asked for, or the first suitable one of this
// build.
const Engine& engine_across(const EngineContext& context) {
  if (context.engine_across == "auto") return *find_engine(Scope::kAnyHosts);
  const Engine& engine = choose_engine(context.engine_across, /*one_host=*/false);
  if (engine.scope == Scope::kAnyHosts) return engine;
  throw ConfigError(
      join_message("a hierarchy cannot be carried across hosts by engine ", engine.name),
      "set TRIREME_ENGINE_ACROSS to an engine that spans hosts, or unset it");
}

std::string hierarchy_unavailable_because() {
  if (find_engine(Scope::kOneHost) == nullptr) return "no engine inside hosts works here";
  if (find_engine(Scope::kAnyHosts) == nullptr) return "no engine across hosts works here";
  return "";
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> connect_hierarchy(const EngineContext& context,
                                                    std::span<const int> host_of_rank,
                                                    const Engine& inside, const Engine& across,
                                                    const HierarchyOptions& options) {
  const HostMap hosts(host_of_rank, options.leaders);
  if (hosts.num_ranks() != context.size) {
    throw UsageError(join_message("a hierarchy of ", context.size, " ranks was given the hosts of ",
                                  hosts.num_ranks()),
                     "give a host for each rank");
  }
  const int host = hosts.host_of(context.rank);
  const int local = hosts.local_of(context.rank);
  HierarchyConnections connections;
  if (hosts.local_size(host) > 1) {
    connections.inside =
        connect_part(context, inside, join_message("host ", host), hosts.members(host));
  }
  if (hosts.num_hosts() > 1) {
    if (local < hosts.num_leaders()) {
      connections.across =
          connect_part(context, across, join_message("leaders ", local), hosts.leaders(local));
    }
    std::vector<int> all(static_cast<std::size_t>(context.size));
    std::iota(all.begin(), all.end(), 0);
    connections.flat = connect_part(context, across, "all hosts", all);
  }
  return c10::make_intrusive<AdapterBackend>(
      std::make_shared<HierarchicalConnection>(
          context.rank, hosts, std::move(connections),
          HierarchicalConnection::Options{.name = join_message(inside.name, "+", across.name),
                                          .one_leader_below = options.one_leader_below,
                                          .receive_from_any = options.receive_from_any}),
      context.timeout);
}

SummationOrder summation_order(const HostMap& hosts, const Engine& inside) {
  if (hosts.largest_local_size() == 1) return SummationOrder::kRank;
  for (int host = 0; host < hosts.num_hosts(); ++host) {
    const int size = hosts.local_size(host);
    const EngineContext part = {.store = {}, .rank = 0, .size = size};
    if (size > 1 && inside.summation_order(part) != SummationOrder::kRank) {
      return SummationOrder::kUnspecified;
    }
  }
  return hosts.num_hosts() == 1 ? SummationOrder::kRank : SummationOrder::kHostNested;
}

Engine hierarchical_engine() {
  return {.name = "hierarchy",
          .scope = Scope::kSeveralHosts,
          .unavailable_because = hierarchy_unavailable_because,
          .connect =
              [](const EngineContext& context) {
                return connect_hierarchy(context, hosts_of(context.machines),
                                         *find_engine(Scope::kOneHost), engine_across(context),
                                         {.leaders = context.leaders});
              },
          .summation_order =
              [](const EngineContext& context) {
                return summation_order(HostMap(hosts_of(context.machines), 0),
                                       *find_engine(Scope::kOneHost));
              }};
}

}  // namespace trireme::comm
