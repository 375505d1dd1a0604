// SPDX-License-Identifier: Apache-2.0
// The only place that reads environment variables: a snapshot of them, and every variable of
// Trireme's own as one documented field. Other components take an Environment, so that tests can
// hand them any.
#pragma once

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
  Environment() = default;
  explicit Environment(std::map<std::string, std::string, std::less<>> variables)
      : variables_(std::move(variables)) {}

  /// Takes a snapshot of this process's environment.
  static Environment of_process();

  /// Returns the value; nothing where the variable is unset or empty.
  std::optional<std::string> find(std::string_view name) const;

  /// Returns the value as an integer. Throws ConfigError naming the variable, its value and the
  /// range where the text is not an integer in [minimum, maximum].
  std::optional<std::int64_t> find_integer(std::string_view name, std::int64_t minimum,
                                           std::int64_t maximum) const;

  const std::map<std::string, std::string, std::less<>>& variables() const noexcept {
    return variables_;
  }

  bool has(std::string_view name) const { return find(name).has_value(); }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

/// Every variable that Trireme itself defines, read once. Variables of launchers are read in
/// trireme/launch.
struct Settings {
  /// TRIREME_TIMEOUT: seconds that rendezvous and a collective may take before they fail. `trireme
  /// run --timeout` sets it. Default 300.
  std::chrono::milliseconds timeout{std::chrono::seconds{300}};

  /// TRIREME_ENGINE: name of the communication engine, as `trireme doctor` lists them. Default
  /// `auto`.
  std::string engine = "auto";

  /// TRIREME_INTERFACE: network interface that engines bind to, such as `eth0`. Default: the one of
  /// the host name, and loopback where all ranks share a host.
  std::string interface;

  /// TRIREME_ENGINE_ACROSS: name of the engine that the hierarchy takes between hosts. Default
  /// `auto`.
  std::string engine_across = "auto";

  /// TRIREME_LEADERS: how many ranks of a host carry slices of a large message to other hosts, side
  /// by side. Default 0: as many as the smallest host has.
  int leaders = 0;

  /// TRIREME_ALLREDUCE_STREAMS: connections over which gradients travel at once, 1 to 16, where a
  /// plan does not say. Default 1.
  int allreduce_streams = 1;

  /// TRIREME_TENSOR_MEMORY: from what tensors on the processor get their memory: `pool`, `libtorch`
  /// or `auto`, the pool where nothing speaks against it. Default `auto`.
  std::string tensor_memory = "auto";

  /// TRIREME_CHECK: `values` compares over the ranks what must be equal on all of them
  /// (comm/check_values.h). Default: nothing is compared.
  bool check_values = false;

  /// TRIREME_DUMP: folder where every rank writes its last operations when a group fails or SIGTERM
  /// ends it; `trireme doctor --dump` compares them. `trireme run --log-dir` sets it. Default: none
  /// is written.
  std::filesystem::path dump_folder;

  /// Where measurements of this machine are kept: `trireme` in XDG_CACHE_HOME or ~/.cache; empty
  /// where neither is set.
  std::filesystem::path cache_folder;

  /// Throws ConfigError for a value that cannot be.
  static Settings from(const Environment& environment);
};

}  // namespace trireme
