// SPDX-License-Identifier: Apache-2.0
// The secret of a run, which only its processes know. With it, ranks distinguish what other ranks
// wrote to the store from what a stranger wrote.
#pragma once

#include <string>
#include <string_view>

namespace trireme::launch {

/// The environment variable with the secret of a run: a random text of 16 characters or more, equal
/// on all ranks.
inline constexpr const char* kSecretVariable = "TRIREME_SECRET";

/// Returns 32 random hexadecimal digits.
std::string make_secret();

/// Throws ConfigError if a secret is too short. An empty text means no secret and is accepted.
void check_secret(std::string_view secret);

}  // namespace trireme::launch
