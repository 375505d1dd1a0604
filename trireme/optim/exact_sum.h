// SPDX-License-Identifier: Apache-2.0
// A sum of squares that does not depend on the order of its terms, nor on which rank adds which.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::detail {

/// Adds the squares of floating-point numbers without rounding: one long fixed-point number that
/// holds every square of a double (Kulisch, "Computer Arithmetic and Validity", 2008, chapter 8).
/// Rounded once, when it is read. Infinities and what is not a number are counted apart.
class ExactSumOfSquares {
 public:
  void add(std::span<const float> numbers);
  void add(std::span<const double> numbers);

  /// What ranks exchange: adding these element by element adds the sums.
  std::span<std::int64_t> words() noexcept {
    carry();
    return words_;
  }

  /// The sum, to the nearest double, ties to even; infinite where an infinity is among the numbers
  /// or the sum is too large, not a number where one of them is not.
  double value() const;
  bool is_finite() const noexcept { return infinities() == 0 && not_numbers() == 0; }

 private:
  // Squares of doubles are multiples of 2^-2148 and below 2^2048; 64 bits more for their number.
  static constexpr int kLowest = -2148;
  static constexpr std::size_t kDigits = (2148 + 2048 + 64) / 32 + 1;

  std::int64_t infinities() const noexcept { return words_[kDigits]; }
  std::int64_t not_numbers() const noexcept { return words_[kDigits + 1]; }
  // Adds (high 2^64 + low) 2^exponent; high has at most 42 bits.
  void add_at(int exponent, std::uint64_t high, std::uint64_t low);
  void carry() noexcept;

  // Digits of 32 bits, least first, each with room for 2^31 additions before it must be carried.
  std::array<std::int64_t, kDigits + 2> words_ = {};
  std::uint32_t num_added_ = 0;
};

}  // namespace trireme::detail
