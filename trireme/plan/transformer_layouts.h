// SPDX-License-Identifier: Apache-2.0
// Finds the layouts of Megatron-LM's tensor parallelism (Shoeybi et al. 2019, section 3) in the
// structure of a transformer, so that nobody has to name its layers.
#pragma once

#include <trireme/plan/parameter_layouts.h>

#include <string>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace trireme {

/// Returns the layouts of a transformer's attention, MLPs, token embedding and head.
///
/// The names of modules do not matter, the numbers in their paths do: linear layers with one path
/// up to its last number, as `blocks.3`, are a block. With the hidden size H, which is the width of
/// the token embedding or, without one, the most frequent number of inputs in blocks:
///  - Layers H -> F of a block with layers F -> H, where F is not H, are the inputs of an MLP and
///    column-parallel. Those layers F -> H are its outputs and row-parallel. That includes experts
///    made of linear layers.
///  - The others below one child of the block are an attention if they are two to four, all have H
///    inputs, and the last has H outputs: that is row-parallel, and those before it, for queries,
///    keys and values, are column-parallel.
///  - The token embedding is the one with as many rows as a layer outside of blocks has outputs,
///    the head; without a head, the first embedding. Both are vocabulary-parallel.
/// All other parameters stay whole. That includes torch::nn::MultiheadAttention, which keeps
/// queries, keys and values in one parameter.
///
/// The patterns name each layer with `*` for numbers. Print them by to_string(), and put other
/// patterns before them with join(). Not collective.
/// @param module the transformer; it may be deferred.
/// @param axis the mesh axis along which the layers are sharded.
/// @throws UsageError if there is no MLP or attention of this form, if a child of a block has more
/// than four other layers from H to H, and if layers of one pattern have different roles.
ParameterLayouts transformer_layouts(const torch::nn::Module& module,
                                     const std::string& axis = "tensor");

}  // namespace trireme
