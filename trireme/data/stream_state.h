// SPDX-License-Identifier: Apache-2.0
// The position of a stream of batches, for checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

/// Everything DataLoader::open() needs to continue with the batches that a stream has not returned
/// yet.
///
/// One state fits all ranks that have taken the same number of batches: it holds the number of
/// shards, but not the index of the shard.
struct StreamState {
  /// The epoch of the stream.
  std::int64_t epoch = 0;
  /// The number of batches of this epoch that next() has returned.
  std::int64_t next_batch = 0;

  /// The settings that determine the samples and their order, as pairs of name and readable text:
  /// data set, shuffle, shards, batch, repetitions, seed, padding, and the names of the operations.
  /// Workers, prefetching and the device are not included.
  std::vector<std::pair<std::string, std::string>> settings;

  /// Compares all members.
  bool operator==(const StreamState&) const = default;

  /// Returns the state as a few lines of text.
  std::string to_text() const;

  /// Parses the text that to_text() wrote. Throws DataError with the line number if it is not such
  /// a text.
  static StreamState from_text(std::string_view text);
};

}  // namespace trireme::data
