// SPDX-License-Identifier: Apache-2.0
// Runs the experts of a mixture on the tokens that chose them, however many these are (Gale et al.,
// "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", 2023). Where ranks have
// different experts, tokens travel to them and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme {

/// Computes the experts whose parameters it is given, and returns a result [tokens, any] for each
/// token, in the same order.
/// @param tokens the tokens [n, features] of these experts, sorted by expert.
/// @param counts how many of them each expert has; some may have none.
/// @param parameters the parameters of these experts, each [experts, …].
using ExpertFunction =
    std::function<at::Tensor(const at::Tensor& tokens, const std::vector<std::int64_t>& counts,
                             const std::vector<at::Tensor>& parameters)>;

/// Computes for each token its chosen experts. No token is dropped, so the work of a rank depends
/// on how many tokens chose its experts.
///
/// If `parameters` are distributed tensors, their layout says which rank has which experts: it
/// shards dim 0 along one axis of the mesh. Ranks need not divide the experts. Each rank then has
/// the rows (dim 0) of its part of `features` along that axis. They travel to the ranks of their
/// experts and back, an all-to-all of as many rows as are needed each. Along other axes all ranks
/// do the same, with whole parameters. The tokens of an expert have the same order on any number of
/// ranks.
///
/// Collective over the mesh and blocking: each rank waits for the numbers of tokens of the others,
/// and the host for its accelerator. Differentiable. It needs the values of `chosen`, so a dry run
/// or a record has none for it.
///
/// @param features [rows, …, features].
/// @param chosen int64 [rows, …, per token], the numbers of the experts of each token.
/// @param parameters each [experts, …]; all are distributed alike, or plain.
/// @param experts is called once on each rank, and not on a rank that has no expert.
/// @returns [rows, …, per token, any], distributed like the rows where parameters are distributed.
/// @throws UsageError for shapes and dtypes that do not fit, for a number that no expert has (on
/// all ranks), for layouts that shard parameters otherwise, and in a dry run or record.
at::Tensor run_experts(const at::Tensor& features, const at::Tensor& chosen,
                       const std::vector<at::Tensor>& parameters, const ExpertFunction& experts);

}  // namespace trireme
