// SPDX-License-Identifier: Apache-2.0
// What the program has only where it is built with LibTorch: with_torch.cpp, and its stub twin
// without_torch.cpp.
#pragma once

#include <trireme/launch/run/run.h>

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the commands that need LibTorch.
void add_torch_commands(CLI::App& app);

/// Returns what serves the store of `trireme run`; empty where nothing can.
launch::StoreHost store_host();

}  // namespace trireme::apps
