// SPDX-License-Identifier: Apache-2.0
// What kernels keep for their backward and only they know the size of.
#pragma once

#include <trireme/tensor/dry_run/dry_run_record.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace trireme::graph::detail {

/// Of oneDNN's recurrent layers. Asks the kernel: runs it on zeros, once for each shape.
class Workspaces {
 public:
  /// Bytes that a call of backward was handed; 0 for operators without a workspace.
  std::int64_t bytes(const tensor::DryRunCall& backward);

 private:
  using Sizes = std::vector<std::vector<std::int64_t>>;
  std::map<std::pair<at::ScalarType, Sizes>, std::int64_t> known_;
};

}  // namespace trireme::graph::detail
