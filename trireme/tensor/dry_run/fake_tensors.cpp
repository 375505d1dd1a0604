// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/fake_tensors.h>

#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dry_run/results.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/empty_strided.h>

#include <ranges>

namespace trireme::tensor {

at::Tensor fake_tensor(const at::Tensor& like, const Layout& layout) {
  const auto strides = dense_strides(like.strides(), like.sizes());
  const at::Tensor global = at::empty_strided(
      like.sizes(), strides, at::TensorOptions().dtype(like.dtype()).device(at::kMeta));
  at::Tensor tensor = wrap(meta_part(global, layout), layout, like.sizes(), strides, 0);
  if (like.requires_grad()) tensor.requires_grad_(true);
  return tensor;
}
namespace {

at::Tensor on_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta));
}

}  // namespace

FakeTensors::FakeTensors(const std::vector<at::Tensor>& tensors,
                         const std::vector<Layout>& layouts) {
  std::vector<at::Tensor> parts;
  std::vector<Geometry> geometries;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    parts.push_back(meta_part(on_meta(tensor), layouts[i]));
    geometries.push_back(dense_geometry(tensor.sizes(), tensor.strides()));
    Before& before = all_.emplace_back();
    before.tensor = tensor;
    before.gradient = tensor.grad();
    before.version = tensor.is_inference() ? 0 : tensor._version();
    if (is_wrapper(tensor)) {
      // Keeps the local tensor itself, because others may hold it, as ZeRO does.
      before.local = distributed_meta(tensor).local;
      before.layout = distributed_meta(tensor).layout;
    } else {
      before.impl =
          tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
    }
  }
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].impl) {
      convert_in_place(all_[i].tensor, parts[i], layouts[i], geometries[i]);
    } else {
      distributed_meta(all_[i].tensor).local = parts[i];
      distributed_meta(all_[i].tensor).layout = layouts[i];
    }
    if (all_[i].gradient.defined()) all_[i].tensor.mutable_grad().reset();
  }
}

FakeTensors::~FakeTensors() {
  for (const Before& before : all_ | std::views::reverse) {
    c10::TensorImpl* const impl = before.tensor.unsafeGetTensorImpl();
    if (before.impl) {
      impl->shallow_copy_from(before.impl);
    } else {
      distributed_meta(before.tensor).local = before.local;
      distributed_meta(before.tensor).layout = before.layout;
    }
    if (before.gradient.defined() || before.tensor.grad().defined()) {
      before.tensor.mutable_grad() = before.gradient;
    }
    if (before.tensor.is_inference()) continue;
    c10::VariableVersion counter = impl->version_counter();
    counter.set_version(before.version);
  }
}

}  // namespace trireme::tensor
