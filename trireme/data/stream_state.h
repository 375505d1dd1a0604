// SPDX-License-Identifier: Apache-2.0
// Where a stream of batches stands, to be kept in a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

/// All that DataLoader::open needs to go on with the batches that a stream has not given yet. One
/// state serves all ranks that have taken as many batches: it says how many shards there are, not
/// which one it is of.
struct StreamState {
  std::int64_t epoch = 0;
  std::int64_t next_batch = 0;  ///< batches of this epoch that next() has returned

  /// What the samples and their order depend on, as readable text by name: data set, shuffle,
  /// shards, batch, repetitions, seed, operations (by their names alone), padding. Workers,
  /// prefetching and the device are not in it.
  std::vector<std::pair<std::string, std::string>> settings;

  bool operator==(const StreamState&) const = default;

  /// Returns it as a few lines of text.
  std::string to_text() const;

  /// Reads what to_text() wrote. Throws DataError that names the line where it is something else.
  static StreamState from_text(std::string_view text);
};

}  // namespace trireme::data
