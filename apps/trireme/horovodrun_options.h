// SPDX-License-Identifier: Apache-2.0
// Options of horovodrun that `trireme run` understands, for command lines that are moved from it.
#pragma once

#include <trireme/launch/run/run.h>

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace trireme::apps {

/// The values of horovodrun's options.
struct HorovodrunOptions {
  std::string hosts;               ///< `host:slots,host:slots`
  std::string host_file;           ///< a file with a line `host slots=4` for each host
  std::string interfaces;          ///< the network interface
  std::int64_t start_timeout = 0;  ///< seconds; 0 if it was not given
};

/// Adds the options to the command `run`. `options` must outlive it.
void add_horovodrun_options(CLI::App& command, HorovodrunOptions& options);

/// Takes the values over into `run`. Throws ConfigError if another host than this one is named, or
/// more ranks are asked for than its slots.
void apply_horovodrun_options(const HorovodrunOptions& options, launch::RunOptions& run);

}  // namespace trireme::apps
