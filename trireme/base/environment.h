// SPDX-License-Identifier: Apache-2.0
// The only place that reads environment variables. Provides a snapshot of them, and a struct with
// one documented field for each variable of Trireme's own. Other components take an Environment as
// an argument, so that tests can pass any values.
#pragma once

#include <trireme/base/leaving.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// An immutable set of environment variables. Const methods may be called concurrently.
class Environment {
 public:
  /// Creates an empty set.
  Environment() = default;
  /// Creates a set of the given names and values.
  explicit Environment(std::map<std::string, std::string, std::less<>> variables)
      : variables_(std::move(variables)) {}

  /// Returns a snapshot of the environment of this process.
  static Environment of_process();

  /// Returns the value of a variable, or std::nullopt if it is unset or empty.
  std::optional<std::string> find(std::string_view name) const;

  /// Returns the value as an integer, or std::nullopt if the variable is unset or empty. Throws
  /// ConfigError with the variable, its value and the permitted range if the text is not an integer
  /// in [minimum, maximum].
  std::optional<std::int64_t> find_integer(std::string_view name, std::int64_t minimum,
                                           std::int64_t maximum) const;

  /// Returns all variables, including empty ones.
  const std::map<std::string, std::string, std::less<>>& variables() const noexcept {
    return variables_;
  }

  /// Returns true if the variable is set and not empty.
  bool has(std::string_view name) const { return find(name).has_value(); }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

/// The values of all variables that Trireme itself defines. Variables of launchers (Slurm, MPI,
/// torchrun) are read in trireme/launch.
struct Settings {
  /// TRIREME_TIMEOUT: the time in seconds after which a rendezvous or a collective fails. `trireme
  /// run --timeout` sets it. Default 300.
  std::chrono::milliseconds timeout{std::chrono::seconds{300}};

  /// TRIREME_ENGINE: the name of the communication engine, as listed by `trireme doctor`. Default
  /// `auto`.
  std::string engine = "auto";

  /// TRIREME_INTERFACE: the network interface that engines bind to, such as `eth0`. By default it
  /// is the interface of the host name, or the one that leads to other hosts if the name only leads
  /// to loopback, or loopback if all ranks share a host.
  std::string interface;

  /// TRIREME_ENGINE_ACROSS: the name of the engine that the hierarchical engine uses between hosts.
  /// Default `auto`.
  std::string engine_across = "auto";

  /// TRIREME_LEADERS: the number of ranks per host that exchange slices of a large message with
  /// other hosts in parallel. Default 0, which means as many as the smallest host has.
  int leaders = 0;

  /// TRIREME_ALLREDUCE_STREAMS: the number of connections, 1 to 16, over which gradients are
  /// reduced at the same time. It applies if the plan does not set a number. Default 1.
  int allreduce_streams = 1;

  /// TRIREME_TENSOR_MEMORY: the allocator of CPU tensors, `pool`, `private`, `libtorch` or `auto`
  /// (comm/tensor_memory.h). With `auto`, the pool is used unless a reason speaks against it.
  std::string tensor_memory = "auto";

  /// TRIREME_CHECK: with `values`, arguments and values that must be equal on all ranks are
  /// compared (comm/check_values.h). By default nothing is compared.
  bool check_values = false;

  /// TRIREME_CHECK_REPLICAS: the number of steps of a Model between two comparisons of the bits
  /// that several ranks hold (parallel/check_replicas.h). `trireme run --check-replicas` sets it.
  /// Default 0, which means that nothing is compared.
  std::int64_t steps_between_replica_checks = 0;

  /// TRIREME_DUMP: the folder in which every rank writes its last operations when a group fails or
  /// SIGTERM ends the process. `trireme doctor --dump` compares these files. `trireme run
  /// --log-dir` sets the variable. By default no file is written.
  std::filesystem::path dump_folder;

  /// TRIREME_PREDICT: set by `trireme predict` for the program whose step it predicts. The folder
  /// that holds the request and takes the record of the step. Empty otherwise.
  std::filesystem::path predict_folder;

  /// TRIREME_CLUSTER: the description of the cluster by whose links layouts are chosen: the name of
  /// one that comes with Trireme, or a file (cluster/cluster_file.h). `trireme run --cluster` sets
  /// it. By default all links are the default Link (cluster/collective_cost.h).
  std::string cluster;

  /// TRIREME_PLAN: the plan of a Model in place of the program's: `auto`, or a TOML file
  /// (requested_plan). `trireme run --plan` sets it. Empty otherwise.
  std::string plan;

  /// TRIREME_GRACE: the time in seconds that a rank has to leave after it was asked to
  /// (comm/leaving.h). `trireme run --grace` sets it. Default 30.
  std::chrono::milliseconds leave_grace = kDefaultLeaveGrace;

  /// TRIREME_MAX_TIME: the running time in seconds after which a rank leaves as if it were asked
  /// to. `trireme run --max-time` sets it. By default there is none.
  std::optional<std::chrono::milliseconds> max_time;

  /// TRIREME_RESUME: with `latest`, a Model goes on from the newest checkpoint of its Checkpoint
  /// callback. `trireme run --resume` sets it. By default the program decides.
  bool resumes = false;

  /// The folder that caches measurements of this machine and plans: `trireme` in XDG_CACHE_HOME, or
  /// in
  /// `~/.cache`. Empty if neither XDG_CACHE_HOME nor HOME is set.
  std::filesystem::path cache_folder;

  /// Reads all variables. Throws ConfigError for a value outside its permitted range.
  static Settings from(const Environment& environment);
};

}  // namespace trireme
