// SPDX-License-Identifier: Apache-2.0
// `trireme doctor`: looks at this machine and this build, and says what works and what to do about the rest.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `doctor`. Its exit code is 0 where everything is in order and 1 where something is not.
void add_doctor_command(CLI::App& app);

}  // namespace trireme::apps
