// SPDX-License-Identifier: Apache-2.0
// Engine: the description of an engine (its name, where it works, how its ranks connect). If its
// dependency is missing, CMake builds a variant that says why it is unavailable. EngineContext:
// what an engine needs to connect.
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

/// The order in which an engine adds the contributions of the ranks to each element. With kRank,
/// results have the bits of one process (docs/design/numerics.md).
enum class SummationOrder {
  kRank,         ///< left fold in rank order, the same bits on every rank and in every run
  kHostNested,   ///< rank order inside each host, then host order
  kUnspecified,  ///< the engine makes no promise beyond equal bits on all ranks
};

/// What an engine needs to connect the ranks of one group.
struct EngineContext {
  c10::intrusive_ptr<c10d::Store> store;  ///< private to this group
  /// The rank of this process in the group.
  int rank = 0;
  /// The number of ranks of the group.
  int size = 1;
  std::string group_name = "world";  ///< for messages
  /// The rank in the world of each rank of the group.
  std::vector<int> world_ranks = {};
  /// The identity of each rank's machine. Two ranks with the same identity share memory and the
  /// loopback interface. Empty if all ranks share one machine.
  std::vector<std::string> machines = {};
  std::string interface = {};               ///< network interface to use; empty: the engine chooses
  std::string engine_across = "auto";       ///< the engine of a hierarchy between hosts
  int leaders = 0;                          ///< leaders per host of a hierarchy; 0: it chooses
  std::filesystem::path dump_folder = {};   ///< where a failing group writes dumps; empty: nowhere
  std::filesystem::path cache_folder = {};  ///< where engines store measurements
  /// The deadline of connecting and of each operation.
  std::chrono::milliseconds timeout{};
  std::shared_ptr<Watchdog> watch = {};  ///< the watchdog of the run, or null

  /// Returns whether all ranks are on one machine.
  bool is_one_host() const;
  /// Returns the rank in the world of a rank of the group.
  int world_rank_of(int group_rank) const;
};

/// The hosts on which an engine can connect a group.
enum class Scope {
  kOneHost,       ///< only inside one host
  kAnyHosts,      ///< anywhere
  kSeveralHosts,  ///< only where a group spans hosts
};

/// The description of an engine.
struct Engine {
  std::string_view name;
  Scope scope = Scope::kAnyHosts;
  at::DeviceType device = at::kCPU;  ///< the device of the tensors that it carries
  /// Returns why the engine cannot be used in this build or on this machine; empty if it can.
  std::string (*unavailable_because)();
  /// Connects the ranks of the context. Collective; blocks up to the deadline of the context.
  c10::intrusive_ptr<c10d::Backend> (*connect)(const EngineContext&);
  /// Returns the order in which the engine adds the ranks of the context.
  SummationOrder (*summation_order)(const EngineContext&);
};

/// Returns all engines of this build, the preferred one first. Defined in comm/engine.cpp, which
/// knows all of them.
std::span<const Engine> engines();

/// Returns the engine with that name. For `auto`, returns the first engine that is available and
/// fits the hosts of the ranks. Throws ConfigError with all engines and the reasons if there is
/// none.
/// @param one_host true if all ranks are on one host.
const Engine& choose_engine(std::string_view name, bool one_host);

/// Throws ConfigError unless `name` is the name of an engine or `auto`. Does not check whether the
/// engine can be used here.
void check_engine_name(std::string_view name);

}  // namespace trireme::comm
