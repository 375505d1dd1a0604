// SPDX-License-Identifier: Apache-2.0
// `trireme data`: makes data sets out of others. Uses no LibTorch.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `data` with its own subcommands; each does its work in its callback, prints
/// what it wrote, and throws the exceptions of trireme/base/error.h.
void add_data_command(CLI::App& app);

}  // namespace trireme::apps
