// SPDX-License-Identifier: Apache-2.0
// Determines from environment variables if this process is a scheduler or a worker. Trireme's own
// names are TRIREME_ROLE, TRIREME_WORKERS, TRIREME_SCHEDULER and TRIREME_NODE_ID. MindSpore's names
// are MS_ROLE, MS_WORKER_NUM, MS_SCHED_HOST, MS_SCHED_PORT and MS_NODE_ID. Opens no connection.
#pragma once

#include <trireme/base/environment.h>

#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The largest number of workers of a scheduler.
inline constexpr int kMostWorkers = 1 << 20;

/// A host and a port.
struct HostAndPort {
  std::string host{};  ///< a name or an address, without brackets
  int port = 0;        ///< the port
  bool operator==(const HostAndPort&) const = default;
};

/// Parses `host:port`, or `[address]:port` for IPv6. Throws ConfigError that names `source`.
HostAndPort parse_host_and_port(std::string_view source, std::string_view text);

/// Returns `host:port`, with brackets around an IPv6 address.
std::string text_of(const HostAndPort& place);

/// The values of the variables that describe a scheduler and its workers.
struct SchedulerVariables {
  std::optional<int> workers{};            ///< the number of workers
  std::optional<HostAndPort> scheduler{};  ///< the address of the scheduler
  std::string node_id{};                   ///< the name of this worker; empty if it has none
};

/// The part that a process has in a run with a scheduler.
struct Role {
  /// The parts.
  enum class Kind {
    kScheduler,  ///< forms the world and watches the workers
    kWorker,     ///< trains
  };
  Kind kind = Kind::kWorker;                  ///< the part of this process
  std::string variable{};                     ///< the variable that says so
  std::optional<int> workers = std::nullopt;  ///< the number of workers; set for a scheduler
  HostAndPort scheduler = {};                 ///< the address of the scheduler
  std::string node_id = {};                   ///< the name of this worker; empty if it has none
};

/// Reads the variables of both families except those of the role. Throws ConfigError if a value is
/// impossible, the families contradict each other, or a variable of MindSpore asks for what Trireme
/// does not have: recovery, parameter servers.
SchedulerVariables read_scheduler_variables(const Environment& environment);

/// Returns true if a launcher of Trireme, or init() in a process with a role, has given this
/// process a rank.
bool has_rank_of_trireme(const Environment& environment);

/// Returns the role of this process, or std::nullopt if no variable gives it one, or if
/// has_rank_of_trireme().
///
/// Throws ConfigError if a value is impossible, a variable is missing or contradicts another, RANK
/// and WORLD_SIZE are set as well, or the role does not exist in Trireme (MS_PSERVER).
std::optional<Role> read_role(const Environment& environment);

/// Throws ConfigError if TRIREME_WORKERS or MS_WORKER_NUM is set and is not the size of the world
/// that a launcher has formed.
void check_world_size(const Environment& environment, int world_size, std::string_view launcher);

/// Throws ConfigError if a variable of this kind is set although the process has no role, or
/// RANK_TABLE_FILE is set. The process would otherwise train alone.
void refuse_incomplete_role(const Environment& environment);

}  // namespace trireme::launch
