// SPDX-License-Identifier: Apache-2.0
// What is wrong with a schedule.
#pragma once

#include <trireme/schedule/schedule.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace trireme::schedule {

struct Finding {
  /// Whose list is wrong; nothing where the schedule as a whole is.
  std::optional<int> rank{};
  /// Which action of it, from 0; nothing where one is missing.
  std::optional<std::size_t> position{};
  /// The whole of it for people, rank and action included:
  /// `rank 1, action 3 (F1.2): comes before R1.2<0 (action 5), on which it depends`.
  std::string sentence;
};

/// Returns the finding of an action of a rank.
Finding finding_at(const Schedule& schedule, int rank, std::size_t position,
                   const std::string& what);

}  // namespace trireme::schedule
