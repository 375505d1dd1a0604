// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/data_encryption.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>

namespace trireme::comm {

bool must_encrypt_data() {
  return Environment::of_process().find_integer("TRIREME_TLS_DATA", 0, 1).value_or(0) == 1;
}

void check_encryption(const Engine& engine) {
  if (engine.scope != Scope::kAnyHosts || engine.name == "gloo" || !must_encrypt_data()) return;
  throw ConfigError(join_message("environment variable TRIREME_TLS_DATA is '1', but engine ",
                                 engine.name, " does not encrypt what it sends"),
                    "unset TRIREME_TLS_DATA; where others can read the network, use an encrypted "
                    "one, such as WireGuard");
}

}  // namespace trireme::comm
