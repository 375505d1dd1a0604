// SPDX-License-Identifier: Apache-2.0
// A cache of the tokens of words: a text consists of few distinct words that occur again and again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::data::detail {

/// Tokens by word. Holds 64 Ki words of up to 64 bytes, about 10 MiB. Safe to use concurrently.
class WordCache {
 public:
  /// Appends the tokens of `word` to `tokens` and returns true if the word is cached; otherwise
  /// returns false.
  bool append(std::string_view word, std::vector<std::int64_t>& tokens);

  /// Caches the tokens of `word`, unless the word is so long that it is unlikely to occur again.
  void keep(std::string_view word, const std::vector<std::int32_t>& tokens);

 private:
  static constexpr std::size_t kShards = 64;
  static constexpr std::size_t kWordsOfShard = 1024;
  static constexpr std::size_t kLongest = 64;

  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard's name
    std::size_t operator()(std::string_view word) const {
      return std::hash<std::string_view>()(word);
    }
  };
  // Each shard has a lock of its own, so that threads that look up different words seldom block
  // each other.
  struct Shard {
    std::mutex mutex;  // Guards words.
    std::unordered_map<std::string, std::vector<std::int32_t>, Hash, std::equal_to<>> words;
  };
  // Uses the upper bits of the hash because the map of the shard uses the lower ones.
  Shard& shard_of(std::string_view word) { return shards_[Hash()(word) >> 58]; }

  std::array<Shard, kShards> shards_;
};

}  // namespace trireme::data::detail
