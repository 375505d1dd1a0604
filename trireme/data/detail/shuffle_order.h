// SPDX-License-Identifier: Apache-2.0
// The two ways of shuffling, on sample numbers.
#pragma once

#include <trireme/data/philox.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::data::detail {

/// Returns the numbers 0 to size - 1 in the order that belongs to (seed, pass); each order is
/// equally likely.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::uint64_t pass);

/// Chooses which sample of a full buffer leaves it. The random numbers belong to (seed, pass).
class BufferChoice {
 public:
  BufferChoice(std::uint64_t seed, std::uint64_t pass);

  /// Returns a place from 0 to filled - 1, each equally likely.
  std::size_t choose(std::size_t filled);

 private:
  Random random_;
};

/// Returns the numbers 0 to size - 1 as they leave a buffer of so many samples, filled in
/// ascending order, which gives one of them at random whenever it is full or nothing is left to
/// come.
std::vector<std::int64_t> buffered_order(std::int64_t size, std::int64_t buffer, std::uint64_t seed,
                                         std::uint64_t pass);

}  // namespace trireme::data::detail
