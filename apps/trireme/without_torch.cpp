// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/torch_parts.h>

namespace trireme::apps {

void add_torch_commands(CLI::App& /*app*/) {}

launch::StoreHost store_host() { return {}; }

}  // namespace trireme::apps
