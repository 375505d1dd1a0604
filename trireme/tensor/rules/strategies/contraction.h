// SPDX-License-Identifier: Apache-2.0
// Sums of products in the notation of einsum: which dims of inputs and outputs are the same index
// says all strategies of matrix products, convolutions and their backwards.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <string>
#include <vector>

namespace trireme::tensor {

/// One tensor of a contraction. Letters name indices, one a dim; `.` is a dim that is never cut.
struct Term {
  std::string letters;
  /// For outputs: which inputs it is made of, by position; empty: all.
  std::vector<int> made_of{};
};

/// Outputs as sums of products of inputs.
///
/// Cutting an index cuts every tensor that has it, and leaves those without whole; an output that
/// has not got the index, but was made of inputs that have, is partial. A dim of size one whose
/// index is longer elsewhere is broadcast: it counts as not having the index.
struct Contraction {
  std::vector<Term> inputs;   ///< one for each tensor of the call
  std::vector<Term> outputs;  ///< one for each tensor returned; undefined ones are passed over
  /// Inputs that are added to the result (a bias): partial where the result is.
  std::vector<int> added{};
  /// Inputs in which the outputs are linear while the others are whole: sums may be taken after.
  std::vector<int> linear{};
};

void add_strategies(const Call& call, const Contraction& contraction,
                    std::vector<Strategy>& strategies);

}  // namespace trireme::tensor
