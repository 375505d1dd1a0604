// SPDX-License-Identifier: Apache-2.0
// A fault of a schedule.
#pragma once

#include <trireme/schedule/schedule.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace trireme::schedule {

/// One fault of a schedule.
struct Finding {
  /// The rank whose list is wrong; std::nullopt if the schedule as a whole is wrong.
  std::optional<int> rank{};
  /// The position of the action in the list, from 0; std::nullopt if an action is missing.
  std::optional<std::size_t> position{};
  /// The complete message for people, including rank and action, such as `rank 1, action 3 (F1.2):
  /// comes before R1.2<0 (action 5), on which it depends`.
  std::string sentence;
};

/// Returns a finding about an action of a rank.
Finding finding_at(const Schedule& schedule, int rank, std::size_t position,
                   const std::string& what);

}  // namespace trireme::schedule
