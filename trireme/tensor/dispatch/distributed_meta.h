// SPDX-License-Identifier: Apache-2.0
// How a tensor is made distributed: a TensorImpl of the global shape without storage, whose
// BackendMeta holds the local tensor and the layout. No subclass has fields, so an existing tensor
// can be turned into one in place.
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace trireme::tensor {

/// What a distributed tensor knows.
struct DistributedMeta final : c10::BackendMeta {
  DistributedMeta(at::Tensor local_tensor, Layout its_layout)
      : local(std::move(local_tensor)), layout(std::move(its_layout)) {}

  // For x.data(), detach() and set_data: the copy gets its own handle on the same storage, or a
  // resize of one would change the other's sizes.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& meta) const override;

  at::Tensor local;
  Layout layout;
  /// What should be a view of another tensor had to be gathered: writing to it would not reach
  /// that.
  bool is_copy_of_view = false;
  /// An operator made it in memory of its own, of which nobody has taken a view since: the part may
  /// be replaced by one of another layout with the same values (`keep_complete`).
  mutable bool is_own = false;
  /// Of the wrapper that had this before, for the next (distributed_meta.cpp).
  c10::VariableVersion spare_version = c10::VariableVersion::DISABLED;
};

inline bool is_wrapper(const c10::TensorImpl* impl) {
  return impl->key_set().has_backend(c10::BackendComponent::PrivateUse2Bit);
}

inline bool is_wrapper(const at::Tensor& tensor) {
  return tensor.defined() && is_wrapper(tensor.unsafeGetTensorImpl());
}

/// Of a tensor that is_wrapper. Its fields may be changed by who changes its geometry too.
inline DistributedMeta& distributed_meta(const at::Tensor& tensor) {
  return *static_cast<DistributedMeta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

/// Shape and strides of a global tensor.
struct Geometry {
  c10::SmallVector<std::int64_t, 5> sizes;
  c10::SmallVector<std::int64_t, 5> strides;
  std::int64_t offset = 0;
  /// A tensor of this shape without values, for what is made often: what follows from sizes and
  /// strides is copied from it instead of being worked out anew. May be null.
  c10::intrusive_ptr<c10::TensorImpl> example;
};

/// Makes a distributed tensor. The geometry is trusted.
at::Tensor wrap(at::Tensor local, const Layout& layout, c10::IntArrayRef sizes,
                c10::IntArrayRef strides, std::int64_t offset);
at::Tensor wrap(at::Tensor local, const Layout& layout, const Geometry& geometry);

/// Gives the geometry an example.
void add_example(Geometry& geometry);

/// Makes one whose layout is replicated: the geometry is the local tensor's.
at::Tensor wrap_replicated(at::Tensor local, const Layout& layout);

/// Turns `tensor` itself into a distributed one: every handle on it follows. requires_grad, hooks,
/// gradient accumulator and version stay.
void convert_in_place(const at::Tensor& tensor, at::Tensor local, const Layout& layout,
                      const Geometry& geometry);

/// Gives a distributed tensor another local tensor, layout and shape (resize_, out=).
void replace_local(const at::Tensor& tensor, at::Tensor local, const Layout& layout,
                   const Geometry& geometry);

}  // namespace trireme::tensor
