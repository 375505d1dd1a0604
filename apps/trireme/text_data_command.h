// SPDX-License-Identifier: Apache-2.0
// The commands `trireme data vocabulary` and `trireme data bert`, which make data for BERT of text.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommands to the command `data`, which add_data_command() has added. Parsing one runs
/// it and prints what was written. Throws the exceptions of trireme/base/error.h.
void add_text_data_commands(CLI::App& app);

}  // namespace trireme::apps
