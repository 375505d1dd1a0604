// SPDX-License-Identifier: Apache-2.0
// Identifies the machine of a process, so that ranks know with which others they share one.
#pragma once

#include <string>

namespace trireme::launch {

/// Returns a text that is equal for two processes if and only if they run on the same start of the
/// same kernel and in the same network namespace.
std::string machine_identity();

}  // namespace trireme::launch
