// SPDX-License-Identifier: Apache-2.0
// Says where in a data loader something failed.
#pragma once

#include <string>

namespace trireme::data::detail {

/// Throws what is in flight again with the place where it happened before its message, and the
/// original nested: a UsageError as such, all else as DataError.
[[noreturn]] void rethrow_from(const std::string& place);

}  // namespace trireme::data::detail
