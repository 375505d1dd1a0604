// SPDX-License-Identifier: Apache-2.0
// Which of LibTorch's operators have a rule.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace trireme::tensor {

/// Overloads of operators in the library aten that take tensors and are not taken apart into
/// others.
struct Coverage {
  std::map<std::string, std::vector<std::string>> covered;  ///< names with overload, by family
  std::vector<std::string> missing;                         ///< run on replicated tensors only
  int num_composite = 0;  ///< overloads that are taken apart, and covered where their parts are
  int num_covered() const;
};

/// Looks at LibTorch's dispatcher as it is.
Coverage coverage();

/// As a page of the documentation, in Markdown (docs/operators.md).
std::string to_markdown(const Coverage& coverage);

}  // namespace trireme::tensor
