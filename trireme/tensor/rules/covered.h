// SPDX-License-Identifier: Apache-2.0
// The list of LibTorch's operators that have a rule, for the documentation.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace trireme::tensor {

/// Overloads of the operators in the library aten that take tensors.
struct Coverage {
  std::map<std::string, std::vector<std::string>> covered;  ///< names with overload, by family
  std::vector<std::string> missing;  ///< overloads without a rule: on replicated tensors only
  int num_composite = 0;  ///< overloads that LibTorch decomposes; their parts have the rules
  /// Returns the number of overloads that have a rule.
  int num_covered() const;
};

/// Returns the coverage of the operators that are registered with LibTorch's dispatcher now.
Coverage coverage();

/// Returns the coverage as a page of documentation in Markdown (docs/operators.md).
std::string to_markdown(const Coverage& coverage);

}  // namespace trireme::tensor
