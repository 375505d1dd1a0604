// SPDX-License-Identifier: Apache-2.0
// Contractions: sums of products in the notation of einsum. The letters that inputs and outputs
// share determine all strategies of matrix products, convolutions and their backwards.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <string>
#include <vector>

namespace trireme::tensor {

/// One tensor of a contraction. Each letter names the index of a dim; `.` is a dim that is never
/// sharded.
struct Term {
  std::string letters;  ///< one for each dim
  /// For an output: the positions of the inputs that it is computed from. Empty means all.
  std::vector<int> made_of{};
};

/// Outputs as sums of products of inputs.
///
/// Sharding an index shards every tensor that has it and replicates the others. An output without
/// the index is Partial if it is computed from inputs that have it. A dim of size one whose index
/// is longer elsewhere is broadcast, and counts as not having the index.
struct Contraction {
  std::vector<Term> inputs;   ///< one for each tensor of the call
  std::vector<Term> outputs;  ///< one for each tensor returned; undefined ones are skipped
  /// Inputs that are added to the result, such as a bias. They are Partial where the result is.
  std::vector<int> added{};
  /// Inputs in which the outputs are linear while the other inputs are whole. Such an input may be
  /// Partial, and the outputs are then Partial too.
  std::vector<int> linear{};
};

/// Returns true if the list has the value.
bool is_one_of(const std::vector<int>& list, int value);

/// Returns the size of an index: the largest among the inputs, since others may be broadcast.
std::int64_t extent_of(const Call& call, const Contraction& contraction, char letter);

/// Appends a strategy for each letter and for each linear input.
void add_strategies(const Call& call, const Contraction& contraction,
                    std::vector<Strategy>& strategies);

}  // namespace trireme::tensor
