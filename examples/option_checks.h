// SPDX-License-Identifier: Apache-2.0
// Checks of options that depend on each other. Their messages name what the user has typed, where
// those of the networks name their settings.
#pragma once

#include <trireme/base/error.h>

#include <cstdint>
#include <string>

namespace examples {

/// An option and its value.
struct GivenNumber {
  std::string name;
  std::int64_t value;
};

/// Throws UsageError unless `divisor` divides `number`, both 1 or more.
inline void check_divides(const GivenNumber& divisor, const GivenNumber& number) {
  if (number.value % divisor.value == 0) return;
  throw trireme::UsageError(trireme::join_message(divisor.name, " is ", divisor.value,
                                                  ", expected a number that divides ", number.name,
                                                  ", which is ", number.value),
                            "change one of the two");
}

/// Throws UsageError if `smaller` is larger than `larger`.
inline void check_at_most(const GivenNumber& smaller, const GivenNumber& larger) {
  if (smaller.value <= larger.value) return;
  throw trireme::UsageError(
      trireme::join_message(smaller.name, " is ", smaller.value, ", expected at most ", larger.name,
                            ", which is ", larger.value),
      "change one of the two");
}

}  // namespace examples
