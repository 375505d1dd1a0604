// SPDX-License-Identifier: Apache-2.0
// What matrix products keep of their factors. A record has them whole; LibTorch folds or expands
// factors before it multiplies them, and where that takes a copy, it keeps the copy.
#pragma once

#include <trireme/tensor/dry_run/dry_run_record.h>

#include <cstdint>
#include <optional>

namespace trireme::graph::detail {

struct SavedFactors {
  bool has_first = false;
  bool has_second = false;
  std::int64_t copied_bytes = 0;  ///< of copies that are kept instead
};

/// Of a call of a product's backward; none where it is that of something else. Multiplies factors
/// without memory and looks at what autograd saves.
std::optional<SavedFactors> saved_factors(const tensor::DryRunCall& backward);

}  // namespace trireme::graph::detail
