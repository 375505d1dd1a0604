// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/held.h>

#include <algorithm>
#include <numeric>

namespace trireme::tensor {
namespace {

c10::DispatchKeySet keys_for(const at::Tensor& local) {
  // The keys of autograd are added by TensorImpl's constructor, those of autocast are not, and
  // PrivateUse2 has none of its own.
  const auto autocast =
      local.is_cuda() ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  return c10::DispatchKeySet(c10::DispatchKey::PrivateUse2) | c10::DispatchKeySet(autocast);
}

struct DistributedImpl final : c10::TensorImpl {
  // Over a local tensor on meta (planning) it still says CPU: composite operators then choose the
  // paths that they choose on CPU.
  explicit DistributedImpl(const at::Tensor& local)
      : TensorImpl(keys_for(local), local.dtype(),
                   local.is_meta() ? c10::Device(c10::DeviceType::CPU) : local.device()) {
    set_storage_access_should_throw();
  }

  const char* tensorimpl_type_name() const override {
    return "a distributed tensor (it has no storage of its own: trireme::to_local gives this "
           "rank's "
           "part, trireme::full all of it)";
  }
};

// Properties of the local tensor that the dispatcher looks at.
void mirror_flags(c10::TensorImpl& impl, const at::Tensor& local) {
  if (local.unsafeGetTensorImpl()->is_wrapped_number()) impl.set_wrapped_number(true);
  if (local.is_conj() != impl.is_conj()) impl._set_conj(local.is_conj());
  if (local.is_neg() != impl.is_neg()) impl._set_neg(local.is_neg());
}

c10::intrusive_ptr<DistributedImpl> make_impl(at::Tensor local, const Layout& layout,
                                              c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                              std::int64_t offset) {
  auto impl = c10::make_intrusive<DistributedImpl>(local);
  impl->set_sizes_and_strides(sizes, strides, offset);
  mirror_flags(*impl, local);
  impl->set_backend_meta(c10::make_intrusive<Held>(std::move(local), layout));
  return impl;
}

}  // namespace

c10::intrusive_ptr<c10::BackendMeta> Held::clone(
    const c10::intrusive_ptr<c10::BackendMeta>& /*meta*/) const {
  auto copy =
      c10::make_intrusive<Held>(at::Tensor(local.unsafeGetTensorImpl()->shallow_copy_and_detach(
                                    c10::VariableVersion(0), true)),
                                layout);
  copy->is_copy_of_view = is_copy_of_view;
  return copy;
}

at::Tensor wrap(at::Tensor local, const Layout& layout, c10::IntArrayRef sizes,
                c10::IntArrayRef strides, std::int64_t offset) {
  return at::Tensor(make_impl(std::move(local), layout, sizes, strides, offset));
}

at::Tensor wrap_replicated(at::Tensor local, const Layout& layout) {
  const at::Tensor& geometry = local;
  return at::Tensor(
      make_impl(local, layout, geometry.sizes(), geometry.strides(), geometry.storage_offset()));
}

void convert_in_place(const at::Tensor& tensor, at::Tensor local, const Layout& layout,
                      const Geometry& geometry) {
  // shallow_copy_from is below the type check that set_data makes.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(
      make_impl(std::move(local), layout, geometry.sizes, geometry.strides, geometry.offset));
}

void replace_local(const at::Tensor& tensor, at::Tensor local, const Layout& layout,
                   const Geometry& geometry) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes, geometry.strides,
                                                      geometry.offset);
  Held& its = held(tensor);
  its.local = std::move(local);
  its.layout = layout;
}

c10::SmallVector<std::int64_t, 5> contiguous_strides(c10::IntArrayRef sizes) {
  c10::SmallVector<std::int64_t, 5> strides(sizes.size(), 1);
  for (std::size_t dim = sizes.size(); dim > 1; --dim) {
    strides[dim - 2] = strides[dim - 1] * std::max<std::int64_t>(sizes[dim - 1], 1);
  }
  return strides;
}

}  // namespace trireme::tensor
