// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/cursor.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme::data::detail {
namespace {

// Operations of a pipeline count up from 1.
constexpr std::uint64_t kShuffle = 0;

}  // namespace

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::uint64_t pass) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed, pass, 0, kShuffle);
  // Fisher and Yates; std::shuffle gives other orders with other standard libraries.
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  return order;
}

Cursor::Cursor(std::shared_ptr<const Recipe> recipe, std::int64_t epoch, std::int64_t first_batch)
    : recipe_(std::move(recipe)),
      samples_per_pass_(recipe_->samples_per_pass()),
      batches_per_pass_(recipe_->batches_per_pass()),
      epoch_(epoch),
      next_(first_batch) {}

void Cursor::begin_pass(std::uint64_t pass) {
  if (!recipe_->shuffle_seed || (!shuffled_.empty() && shuffled_pass_ == pass)) return;
  const std::vector<std::int64_t> order =
      permutation(recipe_->dataset->size(), *recipe_->shuffle_seed, pass);
  const Shard& shard = recipe_->shard;
  shuffled_.resize(static_cast<std::size_t>(samples_per_pass_));
  for (std::size_t i = 0; i < shuffled_.size(); ++i) {
    const std::size_t place =
        static_cast<std::size_t>(shard.index) + i * static_cast<std::size_t>(shard.count);
    shuffled_[i] = order[place % order.size()];
  }
  shuffled_pass_ = pass;
}

Ticket Cursor::next() {
  TRIREME_CHECK(remaining() > 0);
  Ticket ticket;
  ticket.pass = static_cast<std::uint64_t>(epoch_ * recipe_->times + next_ / batches_per_pass_);
  begin_pass(ticket.pass);
  const std::int64_t begin = next_ % batches_per_pass_ * recipe_->rows;
  const std::int64_t end = std::min(begin + recipe_->rows, samples_per_pass_);
  const Shard& shard = recipe_->shard;
  for (std::int64_t i = begin; i < end; ++i) {
    ticket.samples.push_back(shuffled_.empty()
                                 ? (shard.index + i * shard.count) % recipe_->dataset->size()
                                 : shuffled_[static_cast<std::size_t>(i)]);
  }
  ++next_;
  return ticket;
}

}  // namespace trireme::data::detail
