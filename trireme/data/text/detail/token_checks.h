// SPDX-License-Identifier: Apache-2.0
// Checks of arguments that all tokenizers share.
#pragma once

#include <trireme/base/error.h>

#include <cstddef>
#include <cstdint>

namespace trireme::data::detail {

/// Throws the UsageError for a number that is not a token.
[[noreturn]] inline void fail_unknown_token(std::int64_t token, std::size_t place,
                                            std::int64_t vocabulary_size) {
  throw UsageError(join_message("token ", token, " at place ", place,
                                " is not in the vocabulary, which has 0 to ", vocabulary_size - 1),
                   "decode with the tokenizer that made the tokens");
}

}  // namespace trireme::data::detail
