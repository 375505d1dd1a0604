// SPDX-License-Identifier: Apache-2.0
// The command `trireme report`, which makes a page from a run folder. Uses no LibTorch.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `report`. Parsing it writes the page and prints its path and what is missing
/// from the run. Throws the exceptions of trireme/base/error.h.
void add_report_command(CLI::App& app);

}  // namespace trireme::apps
