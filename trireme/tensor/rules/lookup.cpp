// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/lookup.h>

#include <trireme/tensor/rules/across.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace trireme::tensor {

void add_lookup(const AxisCall& axis, std::int64_t table_dim, LocalKernel kernel,
                std::vector<Strategy>& strategies) {
  const at::Tensor& table = axis.call.input(0);
  if (table.dim() == 0 || table.scalar_type() == at::kBool) return;
  Strategy& strategy = strategies.emplace_back();
  strategy.inputs.assign(static_cast<std::size_t>(axis.call.num_inputs()), Placement(Replicate{}));
  strategy.inputs[0] = Shard{static_cast<int>(table_dim)};
  strategy.outputs.push_back(Partial{});
  strategy.kernel = kernel;
}

LocalIndex local_index(const LocalCall& call, const at::Tensor& index, std::int64_t dim) {
  const c10::IntArrayRef sizes = call.input_sizes(0);
  const std::int64_t size = sizes[static_cast<std::size_t>(dim)];
  if (index.is_cpu() && index.numel() > 0) {
    // The local lookup would not notice: it takes a value outside its part for another rank's.
    const auto [lowest, highest] = at::aminmax(index);
    TORCH_CHECK_INDEX(lowest.item<std::int64_t>() >= 0 && highest.item<std::int64_t>() < size,
                      call.call().name(), ": index out of range for dim ", dim, " of size ", size);
  }
  const Extent own = own_extent(sizes, call.input_layout(0), dim);
  const at::Tensor from_start = index - own.offset;
  const at::Tensor is_here = (from_start >= 0).logical_and_(from_start < own.size);
  return {from_start.clamp(0, std::max<std::int64_t>(own.size - 1, 0)), is_here, own.size == 0};
}

}  // namespace trireme::tensor
