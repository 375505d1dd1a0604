// SPDX-License-Identifier: Apache-2.0
// The representation of a distributed tensor: a TensorImpl of the global shape without storage,
// whose BackendMeta holds the local tensor and the layout. The subclass of TensorImpl has no
// fields, so that an existing tensor can be turned into a distributed one in place.
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace trireme::tensor {

struct PlannedLayouts;  // planned_layouts.h

/// The state of a distributed tensor.
struct DistributedMeta final : c10::BackendMeta {
  DistributedMeta(at::Tensor local_tensor, Layout its_layout)
      : local(std::move(local_tensor)), layout(std::move(its_layout)) {}

  // LibTorch calls this for x.data(), detach() and set_data. The copy gets a TensorImpl of its own
  // on the same storage: otherwise a resize of one would change the sizes of the other.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& meta) const override;

  at::Tensor local;  ///< the local tensor of this rank
  Layout layout;
  /// The operator was a view whose base had to be gathered. A write to this copy would not reach
  /// the base, so it is refused.
  bool is_copy_of_view = false;
  /// The layouts of operators that use the tensor as their weight; null: what costs least.
  const PlannedLayouts* as_weight = nullptr;
  /// An operator made this tensor in new memory, and no view of it has been taken. Its local tensor
  /// may be replaced by one with the same values in another layout (`keep_complete`).
  mutable bool is_own = false;
  /// A version counter left by the previous wrapper with this meta (distributed_meta.cpp).
  c10::VariableVersion spare_version = c10::VariableVersion::DISABLED;
};

/// Returns true if the tensor is distributed.
inline bool is_wrapper(const c10::TensorImpl* impl) {
  return impl->key_set().has_backend(c10::BackendComponent::PrivateUse2Bit);
}

inline bool is_wrapper(const at::Tensor& tensor) {
  return tensor.defined() && is_wrapper(tensor.unsafeGetTensorImpl());
}

/// Returns the state of a distributed tensor, which is not checked to be one. Code that changes the
/// fields must also change the geometry accordingly.
inline DistributedMeta& distributed_meta(const at::Tensor& tensor) {
  return *static_cast<DistributedMeta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

/// Sizes, strides and storage offset of a global tensor.
struct Geometry {
  c10::SmallVector<std::int64_t, 5> sizes;
  c10::SmallVector<std::int64_t, 5> strides;
  std::int64_t offset = 0;
  /// A tensor of this geometry, or null. wrap() copies the flags that follow from sizes and strides
  /// from it instead of computing them anew.
  c10::intrusive_ptr<c10::TensorImpl> example;
};

Geometry geometry_of(const at::Tensor& tensor);
/// Returns the geometry of a tensor without gaps whose dims are nested in the order of `strides`.
/// The strides must be equal on all ranks, so they come from the global tensor and not from this
/// rank's part.
Geometry dense_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides);

/// Makes a distributed tensor. The geometry is not checked.
at::Tensor wrap(at::Tensor local, const Layout& layout, c10::IntArrayRef sizes,
                c10::IntArrayRef strides, std::int64_t offset);
at::Tensor wrap(at::Tensor local, const Layout& layout, const Geometry& geometry);

/// Sets the example of a geometry that is used often.
void add_example(Geometry& geometry);

/// Makes a distributed tensor with the geometry of the local tensor; `layout` must be replicated.
at::Tensor wrap_replicated(at::Tensor local, const Layout& layout);

/// Turns `tensor` itself into a distributed tensor: all handles on it see the change. It keeps
/// requires_grad, hooks, gradient accumulator and version.
void convert_in_place(const at::Tensor& tensor, at::Tensor local, const Layout& layout,
                      const Geometry& geometry);

/// Replaces local tensor, layout and geometry of a distributed tensor (resize_, out=).
void replace_local(const at::Tensor& tensor, at::Tensor local, const Layout& layout,
                   const Geometry& geometry);

}  // namespace trireme::tensor
