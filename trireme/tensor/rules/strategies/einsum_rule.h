// SPDX-License-Identifier: Apache-2.0
// Rules of operators whose strategies follow from which dims of inputs and outputs are the same
// index: pooling, indexing, sorting, joining and the like.
#pragma once

#include <trireme/tensor/rules/rule.h>
#include <trireme/tensor/rules/strategies/contraction.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme::tensor {

/// The indices of a call's tensors, and what else is known of them.
struct Indices {
  /// No inputs: the call has no strategies but Replicate.
  Contraction terms{};
  /// Inputs that may be partial sums all at once, the others being whole: the outputs are then.
  std::vector<int> together{};
  /// Inputs of which only the shape counts: partial ones stay as they are.
  std::vector<int> shape_only{};
  /// Inputs of which nothing local counts: they stay as they are.
  std::vector<int> unread{};
};

/// A rule whose strategies follow from the indices. Without a kernel, the operator itself runs, and
/// run_unless_empty where a part may be empty; a kernel given runs under every strategy.
Rule einsum_rule(std::function<Indices(const Call&)> indices_of, const char* family,
                 LocalKernel kernel = nullptr);

/// `rule`, whose argument of that name, sizes of the result, is local on local tensors.
Rule with_local_sizes(Rule rule, const char* argument_name);

/// `rule`, whose outputs have the shapes that `shapes` gives.
Rule with_shapes(Rule rule, std::function<std::vector<at::Tensor>(const Call&)> shapes);

/// Letters A, B, … for the dims of a tensor.
std::string letters_for(std::int64_t num_dims);
/// The same, with `.` at those dims.
std::string letters_except(std::int64_t num_dims, c10::IntArrayRef dims);
/// Letters for the first `num_leading` dims and `.` for the others.
std::string leading_letters(std::int64_t num_leading, std::int64_t num_dims);

/// Terms with these letters, one for each input and one for each output.
Contraction same_letters(const Call& call, const std::string& letters);

/// Whether this rank holds nothing of an input that has elements.
bool has_empty_part(const LocalCall& call);

/// Runs the operator, or, where this rank holds nothing of some input, gives what an empty part
/// contributes: no elements, or the neutral value of a partial result. Many operators refuse
/// tensors without elements.
void run_unless_empty(LocalCall& call);

/// The same for operators that write into a copy of their first tensor, or into itself: where there
/// is nothing to write, or to write to, it stays as it is.
void write_unless_empty(LocalCall& call);

/// What run_unless_empty gives for one output.
at::Tensor output_of_empty_part(LocalCall& call, int output);

/// Where the tensors of a call live.
at::Device device_of(LocalCall& call);

/// Sizes that this rank holds of an output.
c10::SmallVector<std::int64_t, 5> local_output_sizes(const LocalCall& call, int output);

}  // namespace trireme::tensor
