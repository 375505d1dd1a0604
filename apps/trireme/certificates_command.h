// SPDX-License-Identifier: Apache-2.0
// The command `trireme certificates`, which makes and examines certificates for TLS.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `certificates`. Parsing it makes or examines files; a problem that was found
/// is thrown as CLI::RuntimeError.
void add_certificates_command(CLI::App& app);

}  // namespace trireme::apps
