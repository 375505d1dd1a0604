// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/exact_sum.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace trireme::detail {

void ExactSumOfSquares::add_at(int exponent, std::uint64_t high, std::uint64_t low) {
  const auto bit = static_cast<unsigned>(exponent - kLowest);
  std::size_t digit = bit / 32;
  const unsigned shift = bit % 32;
  // At most 106 bits, shifted by at most 31, touch five digits at most.
  const std::uint64_t top = shift == 0 ? 0 : high >> (64 - shift);
  high = high << shift | (shift == 0 ? 0 : low >> (64 - shift));
  low <<= shift;
  for (const std::uint64_t word : {low, high, top}) {
    words_[digit++] += static_cast<std::int64_t>(word & 0xffffffffU);
    if (digit == kDigits) break;
    words_[digit++] += static_cast<std::int64_t>(word >> 32);
    if (digit == kDigits) break;
  }
  // Carrying is delayed: each 64-bit word can take 2^31 additions of 32-bit digits without
  // overflow.
  if (++num_added_ == std::uint32_t{1} << 30) carry();
}

void ExactSumOfSquares::carry() noexcept {
  for (std::size_t digit = 0; digit + 1 < kDigits; ++digit) {
    words_[digit + 1] += words_[digit] >> 32;
    words_[digit] &= 0xffffffff;
  }
  num_added_ = 0;
}

void ExactSumOfSquares::add(std::span<const float> numbers) {
  // Collects squares by exponent first: the square of a significand has 48 bits, so that 2^16 of
  // them fit into 64 bits.
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  for (std::size_t begin = 0; begin < numbers.size(); begin += kBlock) {
    std::array<std::uint64_t, 256> of_exponent = {};
    for (const float number : numbers.subspan(begin, std::min(kBlock, numbers.size() - begin))) {
      const auto bits = std::bit_cast<std::uint32_t>(number);
      const std::uint32_t exponent = bits >> 23 & 0xff;
      const std::uint64_t significand = (bits & 0x7fffff) | (exponent == 0 ? 0U : 0x800000U);
      of_exponent[exponent] += exponent == 0xff ? 0 : significand * significand;
      if (exponent == 0xff) ++words_[kDigits + ((bits & 0x7fffff) == 0 ? 0 : 1)];
    }
    for (int exponent = 0; exponent < 255; ++exponent) {
      const std::uint64_t sum = of_exponent[static_cast<std::size_t>(exponent)];
      if (sum != 0) add_at(2 * (std::max(exponent, 1) - 150), 0, sum);
    }
  }
}

void ExactSumOfSquares::add(std::span<const double> numbers) {
  for (const double number : numbers) {
    const auto bits = std::bit_cast<std::uint64_t>(number);
    const auto exponent = static_cast<int>(bits >> 52 & 0x7ff);
    constexpr std::uint64_t kFraction = (std::uint64_t{1} << 52) - 1;
    if (exponent == 0x7ff) {
      ++words_[kDigits + ((bits & kFraction) == 0 ? 0 : 1)];
      continue;
    }
    const std::uint64_t significand = (bits & kFraction) | (exponent == 0 ? 0 : kFraction + 1);
    if (significand == 0) continue;
    // The square has 106 bits. It is computed from halves of 27 and 26 bits.
    const std::uint64_t upper = significand >> 26;
    const std::uint64_t lower = significand & ((1U << 26) - 1);
    const std::uint64_t middle = 2 * upper * lower;  // times 2^26
    std::uint64_t low = lower * lower;
    std::uint64_t high = (upper * upper) >> 12;  // times 2^52
    for (const std::uint64_t part : {middle << 26, (upper * upper) << 52}) {
      low += part;
      high += low < part ? 1 : 0;
    }
    add_at(2 * (std::max(exponent, 1) - 1075), high + (middle >> 38), low);
  }
}

double ExactSumOfSquares::value() const {
  if (not_numbers() != 0) return std::numeric_limits<double>::quiet_NaN();
  if (infinities() != 0) return std::numeric_limits<double>::infinity();
  ExactSumOfSquares carried = *this;
  carried.carry();
  std::size_t top = kDigits;
  while (top > 0 && carried.words_[top - 1] == 0) --top;
  if (top == 0) return 0;
  // Take the 64 leading bits, and set the last one if any bit follows. That is sufficient to round
  // correctly to the 53 bits of a double.
  std::uint64_t leading = 0;
  bool is_inexact = false;
  const auto first = static_cast<std::uint32_t>(carried.words_[top - 1]);
  const int length = 32 * static_cast<int>(top - 1) + static_cast<int>(std::bit_width(first));
  for (int place = 0; place < 64; ++place) {
    const int bit = length - 1 - place;
    const bool is_set =
        bit >= 0 && (carried.words_[static_cast<std::size_t>(bit / 32)] >> (bit % 32) & 1) != 0;
    leading = leading << 1 | static_cast<std::uint64_t>(is_set);
  }
  for (int bit = length - 65; bit >= 0 && !is_inexact; --bit) {
    is_inexact = (carried.words_[static_cast<std::size_t>(bit / 32)] >> (bit % 32) & 1) != 0;
  }
  return std::ldexp(static_cast<double>(leading | static_cast<std::uint64_t>(is_inexact)),
                    length - 64 + kLowest);
}

}  // namespace trireme::detail
