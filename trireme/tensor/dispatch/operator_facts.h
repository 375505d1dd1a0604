// SPDX-License-Identifier: Apache-2.0
// What the schema of an operator says about its tensors, determined once per operator.
#pragma once

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tensor {

struct Rule;

struct OperatorFacts {
  explicit OperatorFacts(const c10::FunctionSchema& schema);

  /// Sets the rule. If the rule reads Scalars, they become part of the decision's key.
  void follow(const Rule* its_rule);

  /// Returns true if the argument at that position is written to.
  bool writes(int argument) const { return std::ranges::find(written, argument) != written.end(); }

  std::string name;  ///< with overload: `aten::add.Tensor`
  int index = 0;     ///< a number of its own, for caches
  std::uint32_t num_arguments = 0;
  std::uint32_t num_returns = 0;
  /// Positions of the arguments that are written to.
  std::vector<int> written;
  /// The kernel must count writes as versions. True for foreach operators: on plain tensors the
  /// single operators that they consist of count them.
  bool counts_versions = false;
  /// For each return the position of the argument that is returned (in-place and out=), or -1.
  std::vector<int> return_is_argument;
  /// A return is a view of an argument.
  bool returns_view = false;
  /// A return is a view of the first argument, or a copy of it in another dtype.
  bool hands_on_weight = false;
  /// Position of the argument that is viewed; -1 without a view.
  int viewed = -1;
  /// A result may share an argument's memory although the schema does not say so.
  bool may_return_input = false;
  /// For each argument: it is given as out=, so that it is written and its values are never read.
  std::vector<bool> is_out;
  bool has_out = false;
  /// For each argument: its value is part of a decision's key. True for all but tensors, Scalars
  /// and floats.
  std::vector<bool> is_in_key;
  bool has_key_values = false;  ///< at least one argument is in the key
  /// For each argument: it is a Scalar, a float or a generator.
  std::vector<bool> is_number;
  const Rule* rule = nullptr;  ///< null if the operator has no rule
};

}  // namespace trireme::tensor
