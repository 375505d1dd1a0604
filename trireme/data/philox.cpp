// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/philox.h>

#include <trireme/base/error.h>

#include <ATen/core/PhiloxRNGEngine.h>

#include <cmath>
#include <numbers>

namespace trireme::data {
namespace {

// Philox has three arguments, but a sequence is identified by four numbers. Since Philox maps its
// arguments to bits like a block cipher, it also serves as a hash that combines three of the
// numbers.
std::uint64_t derive_key(std::uint64_t seed, std::uint64_t pass, std::uint64_t operation) {
  at::Philox4_32 engine(seed, pass, operation);
  const std::uint64_t low = engine();
  return low | std::uint64_t{engine()} << 32;
}

}  // namespace

void Random::refill() {
  // The key is derived here and not in the constructor because most operations draw nothing.
  if (offset_ == 0) key_ = derive_key(seed_, pass_, operation_);
  at::Philox4_32 engine(key_, sample_, offset_++);
  for (std::uint32_t& word : block_) word = engine();
  used_ = 0;
}

std::int64_t Random::below(std::int64_t bound) {
  TRIREME_CHECK(bound >= 1);
  const auto range = static_cast<std::uint64_t>(bound);
  // Maps 32 bits to the range by a multiplication (Lemire, "Fast random integer generation in an
  // interval", 2019): the upper half of the product is the result. Draws whose lower half is below
  // 2^32 mod range would favour some results and are rejected.
  if (range <= UINT32_MAX) {
    const auto narrow = static_cast<std::uint32_t>(range);
    std::uint64_t product = std::uint64_t{bits()} * narrow;
    if (static_cast<std::uint32_t>(product) < narrow) {
      const std::uint32_t threshold = (0U - narrow) % narrow;
      while (static_cast<std::uint32_t>(product) < threshold)
        product = std::uint64_t{bits()} * narrow;
    }
    return static_cast<std::int64_t>(product >> 32);
  }
  // A larger range takes 64 bits and the remainder; draws below 2^64 mod range are rejected.
  const std::uint64_t threshold = (0ULL - range) % range;
  for (;;) {
    const std::uint64_t high = bits();
    const std::uint64_t draw = high << 32 | bits();
    if (draw >= threshold) return static_cast<std::int64_t>(draw % range);
  }
}

double Random::normal() {
  // The Box-Muller transform. 1 - u is in (0, 1], where the logarithm is finite.
  const double radius = std::sqrt(-2.0 * std::log(1.0 - bits() * 0x1p-32));
  return radius * std::cos(2.0 * std::numbers::pi * bits() * 0x1p-32);
}

}  // namespace trireme::data
