// SPDX-License-Identifier: Apache-2.0
// The command `trireme data`, which converts data sets. Uses no LibTorch.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `data` with its subcommands. Parsing one runs it and prints what was
/// written. Throws the exceptions of trireme/base/error.h.
void add_data_command(CLI::App& app);

}  // namespace trireme::apps
