// SPDX-License-Identifier: Apache-2.0
// Tensors described in text, for ranks that have not all of them: a line for each, with its type,
// its sizes and its name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::detail {

/// A tensor as other ranks hear of it.
struct TensorLine {
  std::string name{};  ///< may have blanks, and be empty
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes{};
};

/// Returns a line for each tensor that is defined.
std::string to_lines(const std::vector<std::pair<std::string, at::Tensor>>& tensors);

/// Reads what to_lines() wrote.
std::vector<TensorLine> parse_lines(const std::string& text);

}  // namespace trireme::detail
