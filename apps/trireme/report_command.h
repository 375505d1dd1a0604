// SPDX-License-Identifier: Apache-2.0
// `trireme report`: makes a page out of a run folder. Uses no LibTorch.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `report`, which does its work in its callback: it writes the page, prints
/// where, and what of the run is missing. Throws the exceptions of trireme/base/error.h.
void add_report_command(CLI::App& app);

}  // namespace trireme::apps
