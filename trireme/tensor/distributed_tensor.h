// SPDX-License-Identifier: Apache-2.0
// Distributed tensors: ordinary at::Tensors that have the global shape and a layout. An operator on
// distributed tensors runs on the local tensor of each rank. Where layouts do not fit the operator,
// its inputs are redistributed first.
//
// Operators on distributed tensors are collective over the mesh: every rank calls the same
// operators in the same order. A plain tensor beside a distributed one counts as replicated; a
// plain tensor that requires a gradient is an error. For `std::cout <<`, data_ptr() and item access
// call full() or to_local() first.
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme {

/// Returns true if `tensor` is distributed.
bool has_layout(const at::Tensor& tensor);

/// Returns the layout of a distributed tensor. The layout of a result that is Partial may change
/// later: an operator that needs its complete values reduces it, and the tensor then keeps the
/// reduced values and their layout. Throws UsageError for a plain tensor.
Layout layout_of(const at::Tensor& tensor);

/// Makes a distributed tensor from a plain one. Every rank of the mesh gives all of the values, and
/// keeps a copy of its own part. With a Partial placement coordinate 0 gets the value and the other
/// coordinates get the neutral element.
///
/// Nothing is communicated. With TRIREME_CHECK=values in the environment the ranks check that they
/// gave the same values. Differentiable: the gradient of `full` is the whole gradient. Throws
/// UsageError where the layout does not fit the shape, and where the tensor is already distributed.
at::Tensor distribute(const at::Tensor& full, const Layout& layout);

/// Turns a plain tensor into a distributed one in place. Every handle on it, such as those in a
/// module or an optimizer, refers to the distributed tensor afterwards. Meant for parameters and
/// buffers. Not recorded by autograd. Throws UsageError as distribute does.
void distribute_in_place(const at::Tensor& tensor, const Layout& layout);

/// Makes a distributed tensor whose local tensor on this rank is `local`. Memory is shared where
/// `local` is contiguous.
///
/// Without `sizes`, the global sizes are summed up from the local sizes of all ranks, which is
/// collective and blocking. With `sizes` nothing is communicated. Differentiable: the gradient of
/// `local` is this rank's part of the gradient. Throws UsageError where the sizes of `local` are
/// not those that the layout and the global sizes give this rank.
at::Tensor from_local(const at::Tensor& local, const Layout& layout);
/// Does the same with the global `sizes` given; nothing is communicated.
at::Tensor from_local(const at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes);

/// Returns this rank's local tensor. It shares memory with `tensor`, except where an operator made
/// a result that is Partial, or sharded along an axis `expert`: then it is a copy. Differentiable:
/// the gradient of the local tensor is taken as this rank's part of a gradient with the layout of
/// `tensor`, Partial placements replaced by Replicate. Throws UsageError for a plain tensor.
at::Tensor to_local(const at::Tensor& tensor);

/// Returns the whole tensor as a plain tensor, on every rank. Collective and blocking. A plain
/// tensor is returned unchanged.
///
/// Differentiable if every rank computes the same with the result and so arrives at the same
/// gradient: each rank keeps its own part of that gradient, and nothing is summed. If ranks compute
/// different things with the result, their gradients differ and what is kept is wrong. A
/// contrastive loss of a rank's own rows against all rows is an example. In that case stay with
/// distributed tensors, or use the differentiable collectives of comm/differentiable.h. With
/// TRIREME_CHECK=values in the environment, backward compares the gradients of the ranks and throws
/// UsageError where they differ.
at::Tensor full(const at::Tensor& tensor);

/// Returns a tensor with the same values in another layout over the same mesh, by the cheapest
/// path. Collective and blocking over the mesh. Differentiable: the gradient is redistributed to
/// the layout of `tensor`, Partial placements replaced by Replicate. Throws UsageError for a plain
/// tensor, for a layout that does not fit, and for one over another mesh
/// (tensor::redistribute_between).
at::Tensor redistribute(const at::Tensor& tensor, const Layout& layout);

/// Gives a layout hint in the code of a model: redistributes a distributed tensor to `layout`, and
/// returns a plain tensor unchanged, so that the same code runs on a single process.
at::Tensor shard(const at::Tensor& tensor, const Layout& layout);

/// Returns dtype, sizes, mesh, layout and local sizes for messages, such as
/// `float32 [8, 6] on data=2, tensor=2 as [data: Shard(0), tensor: Replicate], here [4, 6]`.
std::string describe(const at::Tensor& tensor);

}  // namespace trireme
