// SPDX-License-Identifier: Apache-2.0
// Engine: the description of an engine (its name, where it works, how its ranks connect). If its
// dependency is missing, CMake builds a variant that says why it is unavailable. EngineContext:
// what an engine needs to connect.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace trireme::comm {

class Watchdog;
struct Engine;

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
  /// The engine of tensors on accelerators. Null: they are copied through the memory of the host
  /// and carried by the engine of CPU tensors.
  const Engine* device_engine = nullptr;
  /// The identity of each rank's accelerator: two ranks with the same identity share one. An empty
  /// text is a rank without accelerator. Empty if nothing is known.
  std::vector<std::string> devices = {};

  /// Returns whether all ranks are on one machine.
  bool is_one_host() const;
  /// Returns the rank in the world of a rank of the group.
  int world_rank_of(int group_rank) const;
  /// Returns two ranks that share an accelerator; nothing if each has its own, or if nothing is
  /// known.
  std::optional<std::pair<int, int>> ranks_on_one_device() const;
};

/// The hosts on which an engine can connect a group.
enum class Scope {
  kOneHost,       ///< only inside one host
  kAnyHosts,      ///< anywhere
  kSeveralHosts,  ///< only where a group spans hosts
};

/// The description of an engine.
struct Engine {
  std::string_view name;             ///< as in TRIREME_ENGINE
  Scope scope = Scope::kAnyHosts;    ///< the hosts that a group may be on
  at::DeviceType device = at::kCPU;  ///< the device of the tensors that it carries
  bool has_other_ranks = true;       ///< false: the other ranks are only assumed
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

/// Returns the engine of CPU tensors with that name. For `auto`, returns the first engine that is
/// available and fits the hosts of the ranks. Throws ConfigError with all engines and the reasons
/// if there is none.
/// @param one_host true if all ranks are on one host.
const Engine& choose_engine(std::string_view name, bool one_host);

/// Returns the engine of accelerator tensors with that name. Returns null, which means copies
/// through the memory of the host, for `staged`, and for `auto` if no engine is available or two
/// ranks share an accelerator. Throws ConfigError if the named engine is not available.
/// @param context the ranks with their accelerators.
const Engine* choose_device_engine(std::string_view name, const EngineContext& context);

/// The names of a group's engines, one for CPU tensors and one for tensors on accelerators.
struct EngineNames {
  std::string cpu = "auto";     ///< `auto`, or the name of an engine for CPU tensors
  std::string device = "auto";  ///< `auto`, `staged`, or the name of an engine for accelerators

  /// Reads `auto`, the name of one engine (the other one is then `auto`), or names by type of
  /// device such as `cpu:gloo,cuda:nccl`. Throws ConfigError for unknown names and types. Does not
  /// check whether the engines can be used here.
  static EngineNames parse(std::string_view text);
};

}  // namespace trireme::comm
