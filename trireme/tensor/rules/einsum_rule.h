// SPDX-License-Identifier: Apache-2.0
// Rules whose strategies follow from the indices that dims of inputs and outputs share: pooling,
// indexing, sorting, joining and others.
#pragma once

#include <trireme/tensor/rules/contraction.h>
#include <trireme/tensor/rules/rule.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::tensor {

/// The indices of a call's tensors, and what else is known of the inputs.
struct Indices {
  /// The terms. Without inputs, the call has no strategy but to replicate everything.
  Contraction terms{};
  /// Inputs that may be Partial all at once while the others are whole; the outputs are then
  /// Partial.
  std::vector<int> together{};
  /// Inputs of which only the shape is read: a Partial one stays as it is.
  std::vector<int> shape_only{};
  /// Inputs of which nothing local is read: they keep their layout.
  std::vector<int> unread{};
};

/// Returns a rule whose strategies follow from the indices. If `kernel` is given, it runs under
/// every strategy. Otherwise the operator itself runs, or run_unless_empty where a part may be
/// empty.
Rule einsum_rule(std::function<Indices(const Call&)> indices_of, const char* family,
                 LocalKernel kernel = nullptr);
inline Rule einsum_rule(std::function<Indices(const Call&)> indices_of,
                        LocalKernel kernel = nullptr) {
  return einsum_rule(std::move(indices_of), "", kernel);
}

/// Returns `rule` with local values for the argument of that name, which has the sizes of the
/// result.
Rule with_local_sizes(Rule rule, const char* argument_name);

/// Returns `rule` with outputs of the shapes that `shapes` returns.
Rule with_shapes(Rule rule, std::function<std::vector<at::Tensor>(const Call&)> shapes);

/// Returns letters A, B, … for the dims of a tensor.
std::string letters_for(std::int64_t num_dims);
/// Returns letters A, B, … with `.` for those in `dims`.
std::string letters_except(std::int64_t num_dims, c10::IntArrayRef dims);
/// Returns letters for the first `num_leading` dims and `.` for the others.
std::string leading_letters(std::int64_t num_leading, std::int64_t num_dims);

/// Returns terms with these letters, one for each input and one for each output.
Contraction same_letters(const Call& call, const std::string& letters);

/// Returns true if this rank's part of an input is empty and the input is not.
bool has_empty_part(const LocalCall& call);

/// Runs the operator. If this rank holds nothing of some input, returns what an empty part
/// contributes instead: a tensor without elements, or neutral values for a Partial result. Many
/// operators refuse tensors without elements.
void run_unless_empty(LocalCall& call);

/// Runs an operator that writes into its first tensor or a copy of it. If this rank holds nothing
/// to write or to write to, the tensor stays as it is.
void write_unless_empty(LocalCall& call);

/// Returns what run_unless_empty returns for one output.
at::Tensor output_of_empty_part(LocalCall& call, int output);

/// Returns the device of the tensors of a call.
at::Device device_of(LocalCall& call);

/// Returns the sizes that this rank holds of an output.
c10::SmallVector<std::int64_t, 5> local_output_sizes(const LocalCall& call, int output);

}  // namespace trireme::tensor
