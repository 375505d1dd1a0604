// SPDX-License-Identifier: Apache-2.0
// What matrix products save for backward. A graph records products with their factors as they are;
// LibTorch folds or expands the factors first, and if that makes a copy, it saves the copy.
#pragma once

#include <trireme/tensor/dry_run/dry_run_record.h>

#include <cstdint>
#include <optional>

namespace trireme::graph::detail {

/// The factors that a product saves.
struct SavedFactors {
  bool has_first = false;         ///< the first factor itself is saved
  bool has_second = false;        ///< the second factor itself is saved
  std::int64_t copied_bytes = 0;  ///< bytes of copies that are saved instead of factors
};

/// Returns what is saved for a call of linear_backward or matmul_backward; nullopt for other calls.
/// It multiplies meta tensors and looks at what autograd saves.
std::optional<SavedFactors> saved_factors(const tensor::DryRunCall& backward);

}  // namespace trireme::graph::detail
