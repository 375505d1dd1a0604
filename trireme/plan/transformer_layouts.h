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
/// Blocks are modules of equal structure in a Sequential or ModuleList; linear layers are taken in
/// the order in which they are registered. With the hidden size H, which is the width of the token
/// embedding or, without one, that of the layer norms:
///  - Linear layers H -> F that precede a layer F -> H, where F is not H, are the inputs of an MLP
///    and column-parallel. The layer F -> H is its output and row-parallel.
///  - Of the others, which are those of attention, the last layer with H outputs is row-parallel.
///    Those before it, for queries, keys and values, are column-parallel.
///  - The embedding with the most rows, if its rows are more than H or the model has a linear layer
///    with as many outputs outside of its blocks, is vocabulary-parallel, and so is that layer.
/// All other parameters stay whole. That includes torch::nn::MultiheadAttention, which keeps
/// queries, keys and values in one parameter, and experts.
///
/// The patterns name each layer with `*` for the number of its block: print them by to_string(),
/// and add or replace patterns before them with join(). Makes no communication.
/// @param module the transformer; it may be deferred.
/// @param axis the mesh axis along which the layers are sharded.
/// @throws UsageError if there are no blocks with an MLP or attention of this form, or if blocks
/// differ in what a layer of one name does.
ParameterLayouts transformer_layouts(const torch::nn::Module& module,
                                     const std::string& axis = "tensor");

}  // namespace trireme
