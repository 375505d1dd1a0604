// SPDX-License-Identifier: Apache-2.0
// Which samples are in which batch: the order of samples, before any of them is loaded.
#pragma once

#include <trireme/data/detail/recipe.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::data::detail {

/// One batch to be made.
struct Ticket {
  std::uint64_t pass = 0;
  std::vector<std::int64_t> samples;
};

/// Returns the numbers 0 to size - 1 in the order that belongs to (seed, pass); each order is
/// equally likely.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::uint64_t pass);

/// Walks through the batches of one epoch. Not thread-safe.
class Cursor {
 public:
  Cursor(std::shared_ptr<const Recipe> recipe, std::int64_t epoch, std::int64_t first_batch);

  /// Returns how many batches are left.
  std::int64_t remaining() const { return batches_per_pass_ * recipe_->times - next_; }

  /// Returns the next batch; only while there is one left.
  Ticket next();

 private:
  void begin_pass(std::uint64_t pass);

  std::shared_ptr<const Recipe> recipe_;
  std::int64_t samples_per_pass_;
  std::int64_t batches_per_pass_;
  std::int64_t epoch_;
  std::int64_t next_;
  std::vector<std::int64_t>
      shuffled_;  // this shard's part for the pass; empty where nothing is shuffled
  std::uint64_t shuffled_pass_ = 0;
};

}  // namespace trireme::data::detail
