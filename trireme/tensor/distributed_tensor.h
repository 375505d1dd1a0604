// SPDX-License-Identifier: Apache-2.0
// Distributed tensors: ordinary at::Tensors of the global shape that know their layout. Every
// operator on them runs on each rank's part; where layouts do not fit, what must move is moved.
//
// Operators on distributed tensors are collective over their mesh: every rank calls the same ones
// in the same order. Plain tensors beside them count as the same on all ranks; one that requires a
// gradient is an error. `std::cout <<`, data_ptr() and item access need full() or to_local().
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme {

/// Whether a tensor is distributed.
bool has_layout(const at::Tensor& tensor);

/// A Partial that an operator made has it until an operator needs the values complete, and then the
/// layout in which that one had them. Throws UsageError for a plain tensor.
Layout layout_of(const at::Tensor& tensor);

/// A distributed tensor of the values of `full`, of which every rank of the mesh gives all: each
/// keeps its part, a copy. No communication: that the ranks gave the same values is checked with
/// TRIREME_CHECK=values alone.
/// Partial placements get the value on coordinate 0 and the neutral element elsewhere.
/// Differentiable: the gradient of `full` is whole. Throws UsageError where the layout does not fit
/// the shape, or the tensor is distributed already.
at::Tensor distribute(const at::Tensor& full, const Layout& layout);

/// Turns a plain tensor into a distributed one in place: every handle on it, in members of a module
/// and in optimizers, is the distributed tensor from then on. For parameters and buffers.
void distribute_in_place(const at::Tensor& tensor, const Layout& layout);

/// A distributed tensor whose part on this rank is `local`. Without `sizes` they follow from the
/// parts of all ranks, which is collective and blocking; with them, nothing is sent. The memory is
/// shared where the part is contiguous. Differentiable: the gradient of `local` is this rank's part
/// of the gradient. Throws UsageError where a part has not the size that layout and sizes give it.
at::Tensor from_local(const at::Tensor& local, const Layout& layout);
at::Tensor from_local(const at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes);

/// This rank's part, sharing memory, but for a Partial that an operator made: a copy.
/// Differentiable: the gradient is taken as the part of a gradient with the tensor's layout
/// (replicated where that is partial).
at::Tensor to_local(const at::Tensor& tensor);

/// All of it, on every rank, as a plain tensor. Collective and blocking. Plain tensors are returned
/// as they are.
///
/// Differentiable where every rank computes the same with the result and comes to the same
/// gradient: each keeps its part of that, and nothing is summed. Where a rank goes on with what is
/// its own (its rows against all rows, as contrastive losses do), gradients differ, and what is
/// kept is wrong: stay with distributed tensors, or take the collectives with gradients of
/// comm/differentiable.h. With TRIREME_CHECK=values in the environment, backward compares the
/// gradients of the ranks and throws UsageError where they differ.
at::Tensor full(const at::Tensor& tensor);

/// The same values with another layout, by the cheapest path. Collective and blocking over the
/// meshes. Differentiable: the gradient comes back in the layout before (replicated where that was
/// partial). Throws UsageError for a plain tensor, or a layout that does not fit.
at::Tensor redistribute(const at::Tensor& tensor, const Layout& layout);

/// A hint in the code of a model: redistributes a distributed tensor to `layout`, and returns a
/// plain one as it is, so that the model runs alone as well.
at::Tensor shard(const at::Tensor& tensor, const Layout& layout);

/// `float32 [8, 6] on data=2, tensor=2 as [data: Shard(0), tensor: Replicate], here [4, 6]`.
std::string describe(const at::Tensor& tensor);

}  // namespace trireme
