// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/shuffle_order.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme::data::detail {
namespace {

// The operation number of the shuffle; those of transforms begin at 1.
constexpr std::uint64_t kShuffle = 0;

}  // namespace

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::uint64_t pass) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed, pass, 0, kShuffle);
  // A Fisher-Yates shuffle. std::shuffle would give different orders with different standard
  // libraries.
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  return order;
}

BufferChoice::BufferChoice(std::uint64_t seed, std::uint64_t pass)
    : random_(seed, pass, 0, kShuffle) {}

std::size_t BufferChoice::choose(std::size_t filled) {
  return static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(filled)));
}

std::vector<std::int64_t> buffered_order(std::int64_t size, std::int64_t buffer, std::uint64_t seed,
                                         std::uint64_t pass) {
  BufferChoice choice(seed, pass);
  std::vector<std::int64_t> waiting(static_cast<std::size_t>(std::min(size, buffer)));
  std::iota(waiting.begin(), waiting.end(), 0);
  std::vector<std::int64_t> order;
  order.reserve(static_cast<std::size_t>(size));
  auto next = static_cast<std::int64_t>(waiting.size());
  while (!waiting.empty()) {
    std::int64_t& chosen = waiting[choice.choose(waiting.size())];
    order.push_back(chosen);
    if (next < size) {
      chosen = next++;
    } else {
      chosen = waiting.back();
      waiting.pop_back();
    }
  }
  return order;
}

}  // namespace trireme::data::detail
