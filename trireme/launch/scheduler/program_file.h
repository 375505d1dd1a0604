// SPDX-License-Identifier: Apache-2.0
// Describes the executable of a worker, so that a scheduler notices workers that run another
// program or another build of it.
#pragma once

#include <trireme/launch/scheduler/messages.h>

#include <string>

namespace trireme::launch {

/// Returns path, size and checksum of an executable. The checksum is the 64-bit FNV-1a hash of the
/// whole file (http://www.isthe.com/chongo/tech/comp/fnv), which finds mistakes and not attacks.
/// Throws ConfigError if the file cannot be read.
Program describe_program(const std::string& path);

/// Returns the same for the executable of this process.
Program describe_own_program();

}  // namespace trireme::launch
