// SPDX-License-Identifier: Apache-2.0
// What every tokenizer refuses alike.
#pragma once

#include <trireme/base/error.h>

#include <cstddef>
#include <cstdint>

namespace trireme::data::detail {

[[noreturn]] inline void fail_unknown_token(std::int64_t token, std::size_t place,
                                            std::int64_t vocabulary_size) {
  throw UsageError(join_message("token ", token, " at place ", place,
                                " is not in the vocabulary, which has 0 to ", vocabulary_size - 1),
                   "decode with the tokenizer that made the tokens");
}

}  // namespace trireme::data::detail
