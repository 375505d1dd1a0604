// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <trireme/base/error.h>

#include <numeric>

namespace trireme::tensor {

Dims memory_order(c10::MemoryFormat format, std::size_t num_dims) {
  if (format == c10::MemoryFormat::Contiguous) {
    Dims order(num_dims);
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  if (format == c10::MemoryFormat::ChannelsLast && num_dims == 4) return {0, 2, 3, 1};
  if (format == c10::MemoryFormat::ChannelsLast3d && num_dims == 5) return {0, 2, 3, 4, 1};
  throw UsageError(
      join_message("a redistribution of a tensor of ", num_dims, " dims in memory format ", format),
      "Contiguous is for all tensors, ChannelsLast for 4 dims, ChannelsLast3d for 5");
}

Sizes in_order(c10::ArrayRef<std::int64_t> sizes, const Dims& order) {
  Sizes ordered;
  for (const int dim : order) ordered.push_back(sizes[static_cast<std::size_t>(dim)]);
  return ordered;
}

}  // namespace trireme::tensor
