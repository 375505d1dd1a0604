// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/local_memory.h>

#include <trireme/comm/check_values.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/distributed_tensor.h>

namespace trireme::detail {

at::Tensor memory_of(const at::Tensor& tensor) {
  return has_layout(tensor) ? tensor::distributed_meta(tensor).local : tensor;
}

std::vector<NamedTensor> memories_of(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> memories = tensors;
  for (NamedTensor& item : memories) item.tensor = memory_of(item.tensor);
  return memories;
}

at::Tensor as_like(const at::Tensor& parameter, const at::Tensor& memory) {
  if (!has_layout(parameter)) return memory;
  return tensor::wrap(memory, layout_of(parameter), parameter.sizes(), parameter.strides(), 0);
}

at::Tensor memory_like(const at::Tensor& parameter, const at::Tensor& tensor) {
  if (!has_layout(parameter)) return tensor;
  const Layout layout = layout_of(parameter);
  if (!has_layout(tensor)) return memory_of(distribute(tensor, layout));
  return memory_of(layout_of(tensor) == layout ? tensor : redistribute(tensor, layout));
}

void redistribute_gradient(const at::Tensor& parameter) {
  if (!has_layout(parameter) || !parameter.grad().defined()) return;
  const Layout layout = layout_of(parameter);
  at::Tensor& gradient = parameter.mutable_grad();
  if (layout_of(gradient) != layout) gradient = redistribute(gradient, layout);
}

void check_equal_memories(const std::vector<NamedTensor>& parameters, const comm::Group& group,
                          std::string_view what) {
  std::vector<comm::NamedValue> values;
  for (const NamedTensor& item : parameters) values.push_back({item.name, memory_of(item.tensor)});
  comm::check_equal_values(values, group, what);
}

void check_equal_on_mesh(const std::vector<NamedTensor>& parameters, const DeviceMesh& mesh,
                         std::string_view what) {
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<NamedTensor> whole;
    for (const NamedTensor& item : parameters) {
      const bool is_whole =
          !has_layout(item.tensor) ||
          (layout_of(item.tensor).mesh() == mesh && layout_of(item.tensor)[axis].is_replicate());
      if (is_whole) whole.push_back(item);
    }
    // The groups along an axis compare separately, but an error must reach the whole mesh.
    succeed_together(mesh.group(), "compare parameters",
                     [&] { check_equal_memories(whole, mesh.group(axis), what); });
  }
}

}  // namespace trireme::detail
