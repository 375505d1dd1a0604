// SPDX-License-Identifier: Apache-2.0
// The LibTorch we were built with and the one that is loaded: c10d's C++ interface changes with
// every minor version, so that one build serves one version.
#pragma once

#include <string>

namespace trireme::comm {

/// `2.13.0`: of the headers.
std::string built_torch_version();

/// `2.13.0`: of the shared library in this process.
std::string loaded_torch_version();

/// Throws ConfigError naming both where their major or minor numbers differ.
void check_torch_version();

}  // namespace trireme::comm
