// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a sequence is a function of four numbers, not of earlier draws. The
// generator is LibTorch's Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", 2011).
#pragma once

#include <array>
#include <cstdint>

namespace trireme::data {

/// The random numbers of one operation on one sample.
///
/// Two objects made from the same four numbers return the same sequence on any thread, rank or
/// machine. Sequences of different numbers are independent. Cheap to make. Not thread-safe.
class Random {
 public:
  /// Makes the generator for one operation on one sample.
  /// @param seed the seed of the data loader.
  /// @param pass the number of the pass over the data set: epoch times repetitions plus repetition.
  /// @param sample the index of the sample in the data set.
  /// @param operation the position of the operation in the data loader.
  Random(std::uint64_t seed, std::uint64_t pass, std::uint64_t sample, std::uint64_t operation)
      : seed_(seed), pass_(pass), sample_(sample), operation_(operation) {}

  /// Returns 32 random bits.
  std::uint32_t bits() {
    if (used_ == block_.size()) refill();
    return block_[used_++];
  }

  /// Returns a number in [0, 1) with 24 random bits.
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24F; }

  /// Returns an integer in [0, bound), each with equal probability. `bound` must be at least 1.
  std::int64_t below(std::int64_t bound);

  /// Returns a normally distributed number with mean 0 and standard deviation 1.
  double normal();

 private:
  void refill();

  std::uint64_t seed_;
  std::uint64_t pass_;
  std::uint64_t sample_;
  std::uint64_t operation_;
  std::uint64_t key_ = 0;
  std::uint64_t offset_ = 0;
  std::array<std::uint32_t, 4> block_{};
  std::size_t used_ = block_.size();
};

}  // namespace trireme::data
