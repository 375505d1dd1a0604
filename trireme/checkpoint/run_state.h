// SPDX-License-Identifier: Apache-2.0
// Where a run stands: numbers, and texts that this component keeps unread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Texts by name, of any bytes.
using Entries = std::map<std::string, std::string>;

struct State {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  /// What others put in and get back unchanged. Rank 0's are saved; every rank gets them.
  Entries entries{};
  /// What each rank puts in for itself. On loading, those of the rank of the same number; none
  /// where fewer ranks saved.
  Entries own{};
  /// Filled by loading: `own` of all ranks that saved.
  std::vector<Entries> of_ranks{};
};

}  // namespace trireme::checkpoint
