// SPDX-License-Identifier: Apache-2.0
// What follows from the result of a search.
#include <trireme/base/error.h>
#include <trireme/report/number.h>
#include <trireme/search/search.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace trireme::search {

RankMemory fullest_rank(const Candidate& candidate, double memory_limit) {
  RankMemory fullest = {.needed = candidate.prediction.peak_memory(), .limit = memory_limit};
  for (std::size_t i = 0; i < candidate.devices.size(); ++i) {
    const RankMemory memory = {.needed = candidate.prediction.memory[i].total(),
                               .limit = candidate.devices[i].memory_limit};
    if (i == 0 || memory.needed * fullest.limit > fullest.needed * memory.limit) fullest = memory;
  }
  return fullest;
}

const Candidate& SearchResult::fastest() const {
  if (!best.empty()) return best.front();
  std::string hint = "take more devices or a smaller batch";
  if (smallest) {
    const RankMemory memory = fullest_rank(*smallest, memory_limit);
    hint = join_message("the smallest needs ", report::bytes_as_text(memory.needed),
                        " on a device, and ", report::bytes_as_text(memory.limit),
                        " are there; take more devices or a smaller batch");
  }
  throw UsageError("no plan fits into the memory of the devices", hint);
}

double SearchResult::gap() const noexcept {
  if (best.empty()) return 0;
  const double fastest_step = best.front().prediction.step_seconds;
  return fastest_step > 0 ? std::max(0.0, 1 - lower_bound / fastest_step) : 0;
}

}  // namespace trireme::search
