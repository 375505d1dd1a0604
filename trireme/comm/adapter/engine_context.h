// SPDX-License-Identifier: Apache-2.0
// Engine: one way of carrying collectives, as one function describes it (its name, where it works,
// how its ranks connect); where its dependency is missing, CMake builds a twin that says why.
// EngineContext: what it needs to connect.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace trireme::comm {

class Watchdog;

/// In which order an engine adds the contributions of the ranks, element by element. The numerics
/// contract (docs/design/numerics.md) gives the bits of one process where it is kRank.
enum class SummationOrder {
  kRank,         ///< left fold in rank order, the same bits on every rank and in every run
  kHostNested,   ///< rank order inside each host, then host order
  kUnspecified,  ///< the engine makes no promise beyond equal bits on all ranks
};

/// What an engine needs to connect the ranks of one group.
struct EngineContext {
  c10::intrusive_ptr<c10d::Store> store;  ///< private to this group
  int rank = 0;
  int size = 1;
  std::string group_name = "world";  ///< for messages
  /// Ranks of the group as ranks of the world, by rank.
  std::vector<int> world_ranks = {};
  /// Identity of the machine of each rank, by rank: equal where two ranks share memory and the
  /// loopback interface. Empty: all share one.
  std::vector<std::string> machines = {};
  std::string interface = {};          ///< network interface to bind to; empty: the engine's choice
  std::string engine_across = "auto";  ///< what a hierarchy takes between hosts
  int leaders = 0;                     ///< of a hierarchy, per host; 0: its choice
  std::filesystem::path dump_folder = {};   ///< where a failing group writes; empty: nowhere
  std::filesystem::path cache_folder = {};  ///< where engines keep what they measured
  std::chrono::milliseconds timeout{};
  std::shared_ptr<Watchdog> watch = {};  ///< of the run; null where nobody is to be watched

  bool is_one_host() const;
  /// What a rank is in the world.
  int world_rank_of(int group_rank) const;
};

/// Where an engine can carry a group.
enum class Scope {
  kOneHost,       ///< only inside one host
  kAnyHosts,      ///< anywhere
  kSeveralHosts,  ///< only where a group spans hosts
};

/// One way of carrying collectives.
struct Engine {
  std::string_view name;
  Scope scope = Scope::kAnyHosts;
  at::DeviceType device = at::kCPU;  ///< of the tensors it carries
  /// Why it cannot be used in this build or on this machine; empty where it can.
  std::string (*unavailable_because)();
  /// Collective over the ranks of the context, blocking up to its deadline.
  c10::intrusive_ptr<c10d::Backend> (*connect)(const EngineContext&);
  SummationOrder (*summation_order)(const EngineContext&);
};

/// All engines this build knows, the preferred first. Defined where all are known
/// (comm/engine.cpp).
std::span<const Engine> engines();

/// Returns the engine of that name, or for `auto` the first that is available and suits where the
/// ranks are. Throws ConfigError with the list and the reasons where there is none.
const Engine& choose_engine(std::string_view name, bool one_host);

/// Throws ConfigError where no engine, nor `auto`, has that name; whether it can be used here is
/// left open.
void check_engine_name(std::string_view name);

}  // namespace trireme::comm
