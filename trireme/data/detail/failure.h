// SPDX-License-Identifier: Apache-2.0
// Adds to an error the place in the data loader where it happened.
#pragma once

#include <string>

namespace trireme::data::detail {

/// Rethrows the current exception with `place` prepended to its message and the original nested. A
/// UsageError stays a UsageError; every other exception becomes a DataError.
[[noreturn]] void rethrow_from(const std::string& place);

}  // namespace trireme::data::detail
