// SPDX-License-Identifier: Apache-2.0
// Whether the tensors of collectives must be encrypted on their way, which only some engines can.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

/// Returns true if TRIREME_TLS_DATA is 1. Throws ConfigError if it is neither 0 nor 1.
bool must_encrypt_data();

/// Throws ConfigError if tensors must be encrypted and an engine has connections that it cannot
/// encrypt. Engines inside a host have none. Gloo decides itself, because that depends on LibTorch,
/// and a hierarchy asks for the engines that it consists of.
void check_encryption(const Engine& engine);

}  // namespace trireme::comm
