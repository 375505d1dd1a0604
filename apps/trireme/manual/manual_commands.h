// SPDX-License-Identifier: Apache-2.0
// `trireme completion`, and the hidden `trireme man-pages`, which the build calls.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds both commands. Their output describes all commands that `app` has when it is parsed.
void add_manual_commands(CLI::App& app);

}  // namespace trireme::apps
