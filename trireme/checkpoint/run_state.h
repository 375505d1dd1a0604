// SPDX-License-Identifier: Apache-2.0
// The state of a run besides tensors: epoch and step, and texts that this component does not
// interpret.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Texts by name; they may contain any bytes.
using Entries = std::map<std::string, std::string>;

/// The state of a run besides tensors.
struct State {
  /// The number of the epoch.
  std::int64_t epoch = 0;
  /// The number of the step.
  std::int64_t step = 0;
  /// Entries of other components, returned unchanged. Those of rank 0 are saved, and every rank
  /// gets them.
  Entries entries{};
  /// Entries that each rank saves for itself. Loading returns those of the rank with the same
  /// number, or none if fewer ranks saved.
  Entries own{};
  /// The entries `own` of all ranks that saved. Set by loading.
  std::vector<Entries> of_ranks{};
};

}  // namespace trireme::checkpoint
