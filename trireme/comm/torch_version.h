// SPDX-License-Identifier: Apache-2.0
// The version of LibTorch at build time and the one that is loaded. The C++ interface of c10d
// changes with every minor version, so a build supports one version only.
#pragma once

#include <string>

namespace trireme::comm {

/// Returns the version of the headers, such as `2.13.0`.
std::string built_torch_version();

/// Returns the version of the shared library in this process, such as `2.13.0`.
std::string loaded_torch_version();

/// Throws ConfigError with both versions if their major or minor numbers differ.
void check_torch_version();

}  // namespace trireme::comm
