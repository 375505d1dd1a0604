// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/transforms/kernels.h>

#include <algorithm>

namespace trireme::data::detail {

namespace baseline {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
#endif

// Half-pixel centres: output element i is at (i + 0.5) * from / to - 0.5 of the input, clamped to
// its ends.
ResizedLine::ResizedLine(std::int64_t from, std::int64_t to) {
  const auto count = static_cast<std::size_t>(to);
  first.resize(count);
  second.resize(count);
  weight_of_first.resize(count);
  weight_of_second.resize(count);
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  for (std::size_t i = 0; i < count; ++i) {
    const float place = std::max(scale * (static_cast<float>(i) + 0.5F) - 0.5F, 0.0F);
    const std::int64_t before = std::min(static_cast<std::int64_t>(place), from - 1);
    const float weight = place - static_cast<float>(before);
    first[i] = static_cast<std::int32_t>(before);
    second[i] = static_cast<std::int32_t>(std::min(before + 1, from - 1));
    weight_of_first[i] = 1 - weight;
    weight_of_second[i] = weight;
  }
}

std::span<const Kernels* const> runnable_kernels() {
  static const std::vector<const Kernels*> all = [] {
    std::vector<const Kernels*> sets = {&baseline::kKernels};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) sets.push_back(&avx2::kKernels);
#endif
    return sets;
  }();
  return all;
}

const Kernels& kernels() {
  static const Kernels& best = *runnable_kernels().back();
  return best;
}

}  // namespace trireme::data::detail
