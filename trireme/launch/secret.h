// SPDX-License-Identifier: Apache-2.0
// What only the processes of one run know, by which ranks tell what they wrote from what others
// did.
#pragma once

#include <string>
#include <string_view>

namespace trireme::launch {

/// The environment variable with the secret of a run: 16 characters or more, random, the same on
/// all ranks.
inline constexpr const char* kSecretVariable = "TRIREME_SECRET";

/// Returns 32 random hexadecimal digits.
std::string make_secret();

/// Throws ConfigError where it is too short to be one; an empty one is none.
void check_secret(std::string_view secret);

}  // namespace trireme::launch
