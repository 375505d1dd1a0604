// SPDX-License-Identifier: Apache-2.0
// The tokens of words that came before: a text has few words, again and again.
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
  /// Appends the tokens of `word` to `tokens`. Returns whether it has them.
  bool append(std::string_view word, std::vector<std::int64_t>& tokens);

  /// Keeps the tokens of `word`, unless it is too long to come again.
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
  // Threads that ask for different words seldom wait for one another.
  struct Shard {
    std::mutex mutex;  // guards words
    std::unordered_map<std::string, std::vector<std::int32_t>, Hash, std::equal_to<>> words;
  };
  // Not by the bits that choose a bucket of the map.
  Shard& shard_of(std::string_view word) { return shards_[Hash()(word) >> 58]; }

  std::array<Shard, kShards> shards_;
};

}  // namespace trireme::data::detail
