// SPDX-License-Identifier: Apache-2.0
// What an operator's schema says about its tensors, worked out once.
#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tensor {

struct Rule;

struct OperatorFacts {
  explicit OperatorFacts(const c10::FunctionSchema& schema);

  /// Sets the rule, which may put numbers into the key.
  void follow(const Rule* its_rule);

  std::string name;  ///< with overload: `aten::add.Tensor`
  int index = 0;     ///< among all operators, for keys of caches
  std::uint32_t num_arguments = 0;
  std::uint32_t num_returns = 0;
  /// Positions of arguments that are written to.
  std::vector<int> written;
  /// Nobody above the kernel counts the writes as versions: on plain tensors the single operators
  /// do, which a foreach operator is made of.
  bool counts_versions = false;
  /// For each return the argument it is (in-place and out=), or -1.
  std::vector<int> return_is_argument;
  /// For each return whether it is a view of an argument.
  bool returns_view = false;
  /// Position of the argument that the views alias.
  int viewed = -1;
  /// Whether a result may have an argument's memory although the schema does not say so.
  bool may_return_input = false;
  /// Arguments given as out=: written, and their values never read.
  std::vector<bool> is_out;
  bool has_out = false;
  /// Arguments whose values are part of a decision's key: all but tensors, Scalars and floats.
  std::vector<bool> is_in_key;
  bool has_key_values = false;  ///< any of them
  /// Scalars and floats.
  std::vector<bool> is_number;
  const Rule* rule = nullptr;  ///< null: none
};

}  // namespace trireme::tensor
