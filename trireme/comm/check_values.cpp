// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/check_values.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trireme::comm {
namespace {

constexpr std::int64_t kAtOnce = 1 << 17;  // elements that are summed before sums are mixed

// Elements of 8 or 16 bytes are read as pieces of 4 bytes, because products of larger integers
// would lose their upper bits.
at::ScalarType bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    default:
      return at::kInt;
  }
}

// Returns [count] odd factors of 31 bits without a regular pattern, which values might have as
// well. A product with 32 bits of a tensor is exact, so that another element gives another sum.
at::Tensor odd_numbers(std::int64_t count, at::Device device) {
  constexpr std::int64_t kBits = 0x7fffffff;
  at::Tensor numbers = at::arange(1, count + 1, at::TensorOptions(at::kLong).device(device));
  for (const std::int64_t factor : {0x1e3779b97f4a7c15, 0x3f58476d1ce4e5b9}) {
    numbers.mul_(factor);
    numbers.bitwise_xor_(numbers.bitwise_right_shift(30));
  }
  return numbers.bitwise_and_(kBits).bitwise_or_(1);
}

// The same factors for loops of the CPU.
const std::vector<std::uint32_t>& odd_numbers_of_cpu() {
  static const std::vector<std::uint32_t> all = [] {
    const at::Tensor numbers = odd_numbers(kAtOnce, at::kCPU);
    const auto* const first = numbers.const_data_ptr<std::int64_t>();
    return std::vector<std::uint32_t>(first, first + kAtOnce);
  }();
  return all;
}

// Returns the sum of products modulo 2^64, at most kAtOnce of them.
template <typename Bits>
std::uint64_t sum_of_products(const Bits* bits, std::int64_t count) {
  const std::uint32_t* const factors = odd_numbers_of_cpu().data();
  std::uint64_t sum = 0;
  if constexpr (sizeof(Bits) < sizeof(std::int32_t)) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t product = std::int64_t{bits[i]} * factors[i];
      sum += static_cast<std::uint64_t>(product);
    }
  } else {
    // Processors multiply vectors of unsigned numbers faster: adds 2^31 to each element, and
    // subtracts the sum of what that adds.
    constexpr std::uint32_t kHalf = 1U << 31U;
    std::uint64_t added = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t moved = static_cast<std::uint32_t>(bits[i]) ^ kHalf;
      sum += moved * factors[i];
      added += factors[i];
    }
    sum -= added * kHalf;
  }
  return sum;
}

template <typename Bits>
std::vector<std::uint64_t> sums_on_cpu(const at::Tensor& bits) {
  const auto* const first = bits.const_data_ptr<Bits>();
  const std::int64_t count = bits.numel();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>((count + kAtOnce - 1) / kAtOnce));
  at::parallel_for(0, std::ssize(sums), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t offset = i * kAtOnce;
      sums[static_cast<std::size_t>(i)] =
          sum_of_products(first + offset, std::min(kAtOnce, count - offset));
    }
  });
  return sums;
}

std::vector<std::uint64_t> sums_on_device(const at::Tensor& bits) {
  const at::Tensor numbers = odd_numbers(std::min(kAtOnce, bits.numel()), bits.device());
  std::vector<std::uint64_t> sums;
  for (std::int64_t begin = 0; begin < bits.numel(); begin += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, bits.numel() - begin);
    const at::Tensor sum = bits.narrow(0, begin, count).mul(numbers.narrow(0, 0, count)).sum();
    sums.push_back(static_cast<std::uint64_t>(sum.item<std::int64_t>()));
  }
  return sums;
}

std::vector<std::uint64_t> sums_of(const at::Tensor& bits) {
  if (!bits.is_cpu()) return sums_on_device(bits);
  switch (bits.scalar_type()) {
    case at::kByte:
      return sums_on_cpu<std::uint8_t>(bits);
    case at::kShort:
      return sums_on_cpu<std::int16_t>(bits);
    default:
      return sums_on_cpu<std::int32_t>(bits);
  }
}

std::string describe(const NamedValue& named) {
  return join_message(named.name, " ", named.value.sizes(), " ", named.value.scalar_type());
}

// Checks names, shapes and dtypes, a line for each tensor. Ranks with different tensors could not
// exchange values.
void check_same_tensors(std::span<const NamedValue> values, const Group& group,
                        std::string_view what) {
  std::string own;
  for (const NamedValue& named : values) own += describe(named) + "\n";
  const auto difference = find_difference(own, group);
  if (!difference) return;
  throw UsageError(join_message("TRIREME_CHECK=values: the ", what,
                                " are not the same tensors on all ranks, first:\n    rank 0 has ",
                                difference->line_of_first, "\n    rank ", difference->rank, " has ",
                                difference->line_of_rank),
                   "make the same call with the same tensors on every rank");
}

// Returns the largest difference between this rank's elements and those of rank 0. Collective.
double distance_to_first(const at::Tensor& value, const Group& group) {
  const at::Tensor first = value.contiguous().clone();
  broadcast(first, 0, group, "TRIREME_CHECK");
  const bool is_complex = first.is_complex();
  const at::ScalarType wide = is_complex ? at::kComplexDouble : at::kDouble;
  return value.to(wide).sub(first.to(wide)).abs().max().item<double>();
}

}  // namespace

bool checks_values() {
  static const bool checks = Settings::from(Environment::of_process()).check_values;
  return checks;
}

std::int64_t digest_of_values(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = tensor.detach().resolve_conj().resolve_neg().contiguous();
  const at::Tensor bits = whole.flatten().view(bits_of(whole));
  std::uint64_t digest = 0;
  for (const std::uint64_t sum : sums_of(bits)) digest = digest * 0x9e3779b97f4a7c15U + sum;
  return static_cast<std::int64_t>(digest);
}

void check_equal_values(std::span<const NamedValue> values, const Group& group,
                        std::string_view what) {
  check_given(group, "TRIREME_CHECK");
  if (group.size() == 1 || group.rank() < 0) return;
  check_same_tensors(values, group, what);
  const at::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t ranks = group.size();
  if (count == 0) return;
  const at::Tensor own = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    own.mutable_data_ptr<std::int64_t>()[i] =
        digest_of_values(values[static_cast<std::size_t>(i)].value);
  }
  const at::Tensor all = at::empty({ranks, count}, at::kLong);
  all_gather(all, own, group, "TRIREME_CHECK");
  const auto* digests = all.const_data_ptr<std::int64_t>();

  constexpr int kNamed = 5;
  int num_different = 0;
  std::string lines;
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<int> different;
    for (std::int64_t rank = 1; rank < ranks; ++rank) {
      if (digests[rank * count + i] != digests[i]) different.push_back(static_cast<int>(rank));
    }
    if (different.empty() || ++num_different > kNamed) continue;
    const NamedValue& named = values[static_cast<std::size_t>(i)];
    const at::Tensor distance = at::full({1}, distance_to_first(named.value, group), at::kDouble);
    all_reduce(distance, group, ReduceOp::kMaximum, "TRIREME_CHECK");
    lines += join_message("\n    ", describe(named), ": ", format_ranks(different),
                          " differ from rank 0, by up to ", distance.item<double>());
  }
  if (num_different == 0) return;
  throw UsageError(
      join_message("TRIREME_CHECK=values: ", num_different, " of ", count, " ", what,
                   " differ between ranks of group '", group.name(), "', where they must be equal:",
                   lines, num_different > kNamed ? "\n    and more" : ""),
      "what gives the ranks different values comes before this: other initial values, an update or "
      "a loss that depends on the rank, a tensor that is changed outside of training");
}

}  // namespace trireme::comm
