// SPDX-License-Identifier: Apache-2.0
// Describes tensors in text for ranks that do not have them: a line for each with its dtype, its
// sizes and its name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::detail {

/// The description of one tensor that other ranks receive.
struct TensorLine {
  std::string name{};  ///< may be empty or contain blanks
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes{};
};

/// Returns one line for each tensor that is defined.
std::string to_lines(const std::vector<std::pair<std::string, at::Tensor>>& tensors);

/// Parses the text that to_lines() returned.
std::vector<TensorLine> parse_lines(const std::string& text);

}  // namespace trireme::detail
