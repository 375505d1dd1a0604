// SPDX-License-Identifier: Apache-2.0
// A sum of squares whose result depends neither on the order of its terms nor on which rank adds
// which terms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::detail {

/// Sums the squares of floating-point numbers without rounding, in a long fixed-point number that
/// can represent every square of a double (Kulisch, "Computer Arithmetic and Validity", 2008,
/// chapter 8). The sum is rounded once, when it is read. Infinities and NaNs are counted
/// separately.
class ExactSumOfSquares {
 public:
  /// Adds the squares of numbers.
  void add(std::span<const float> numbers);
  /// Adds the squares of numbers.
  void add(std::span<const double> numbers);

  /// Returns the words that ranks exchange: adding the words of several sums element by element
  /// adds the sums.
  std::span<std::int64_t> words() noexcept {
    carry();
    return words_;
  }

  /// Returns the sum, rounded to the nearest double (ties to even). Returns infinity if a number
  /// was infinite or the sum is too large, and NaN if a number was NaN.
  double value() const;
  /// Returns true if no number was infinite or NaN.
  bool is_finite() const noexcept { return infinities() == 0 && not_numbers() == 0; }

 private:
  // Squares of doubles are multiples of 2^-2148 and below 2^2048. 64 further bits allow for 2^64
  // terms.
  static constexpr int kLowest = -2148;
  static constexpr std::size_t kDigits = (2148 + 2048 + 64) / 32 + 1;

  std::int64_t infinities() const noexcept { return words_[kDigits]; }
  std::int64_t not_numbers() const noexcept { return words_[kDigits + 1]; }
  // Adds (high 2^64 + low) 2^exponent; high has at most 42 bits.
  void add_at(int exponent, std::uint64_t high, std::uint64_t low);
  void carry() noexcept;

  // Digits of 32 bits, least significant first. Each can take 2^31 additions before a carry is
  // needed.
  std::array<std::int64_t, kDigits + 2> words_ = {};
  std::uint32_t num_added_ = 0;
};

}  // namespace trireme::detail
