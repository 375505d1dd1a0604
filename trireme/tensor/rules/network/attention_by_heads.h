// SPDX-License-Identifier: Apache-2.0
// Attention by heads: queries, keys and values that an axis shards along the sequence are brought
// to shards of heads by all-to-all. Each rank computes the whole sequence of its heads, and the
// output returns to shards of the sequence (Jacobs et al., "DeepSpeed Ulysses", 2023).
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <vector>

namespace trireme::tensor {

/// Kernel of _scaled_dot_product_flash_attention_for_cpu whose keys one axis shards along the
/// sequence. Blocking, and collective over the group of that axis.
void attention_by_heads(LocalCall& call);

/// Kernel of its backward.
void attention_by_heads_backward(LocalCall& call);

/// Returns the estimated seconds of the messages and copies.
/// @param bytes of all tensors that move, which the ranks along the axis hold together, with heads
/// padded to the same number on each rank.
double heads_seconds(const DeviceMesh& mesh, int axis, double bytes, bool is_backward);

/// Appends the collectives of both kernels.
void add_heads_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges);

}  // namespace trireme::tensor
