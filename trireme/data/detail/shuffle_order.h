// SPDX-License-Identifier: Apache-2.0
// The two ways to shuffle sample numbers: a full permutation and a shuffle buffer.
#pragma once

#include <trireme/data/philox.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::data::detail {

/// Returns the numbers 0 to size - 1 in random order, determined by seed and pass. All orders are
/// equally likely.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::uint64_t pass);

/// Chooses which sample leaves a shuffle buffer. The random numbers are determined by seed and
/// pass.
class BufferChoice {
 public:
  /// Makes the random numbers of a pass.
  BufferChoice(std::uint64_t seed, std::uint64_t pass);

  /// Returns a position from 0 to filled - 1, each with equal probability.
  std::size_t choose(std::size_t filled);

 private:
  Random random_;
};

/// Returns the numbers 0 to size - 1 in the order in which they leave a shuffle buffer.
///
/// The buffer is filled in ascending order. It emits a random number whenever it is full or all
/// numbers have been added.
std::vector<std::int64_t> buffered_order(std::int64_t size, std::int64_t buffer, std::uint64_t seed,
                                         std::uint64_t pass);

}  // namespace trireme::data::detail
