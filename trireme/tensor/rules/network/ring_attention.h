// SPDX-License-Identifier: Apache-2.0
// Ring attention: queries, keys and values are sharded along the sequence over one axis. Keys and
// values travel from rank to rank while each rank computes the block of its queries on the keys
// that it has (Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers", 2023). A rank
// holds the keys of three parts at most: its own, those it computes with, and those that arrive.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <vector>

namespace trireme::tensor {

/// Kernel of _scaled_dot_product_flash_attention_for_cpu whose keys one axis shards along the
/// sequence. Blocking, and collective over the group of that axis.
void ring_attention(LocalCall& call);

/// Kernel of its backward. Gradients of keys and values travel behind them, and return to the rank
/// that has the keys.
void ring_attention_backward(LocalCall& call);

/// Returns the estimated seconds of the messages, for tensors of `key_bytes` and `value_bytes` that
/// the ranks along the axis hold together. Computation that runs at the same time is not
/// subtracted.
double ring_seconds(const DeviceMesh& mesh, int axis, double key_bytes, double value_bytes,
                    bool is_backward);

/// Appends the messages of both kernels.
void add_ring_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges);

}  // namespace trireme::tensor
