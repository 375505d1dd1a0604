// SPDX-License-Identifier: Apache-2.0
// The size of workspaces that kernels keep for their backward, and that only the kernels know.
#pragma once

#include <trireme/tensor/dry_run/dry_run_record.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace trireme::graph::detail {

/// Measures workspaces of oneDNN's recurrent layers by running the kernel on zeros, once per shape.
class Workspaces {
 public:
  /// Returns the bytes of the workspace that a call of backward gets; 0 for operators without one.
  std::int64_t bytes(const tensor::DryRunCall& backward);

 private:
  using Sizes = std::vector<std::vector<std::int64_t>>;
  std::map<std::pair<at::ScalarType, Sizes>, std::int64_t> known_;
};

}  // namespace trireme::graph::detail
