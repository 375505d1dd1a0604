// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/word_cache.h>

namespace trireme::data::detail {

bool WordCache::append(std::string_view word, std::vector<std::int64_t>& tokens) {
  if (word.size() > kLongest) return false;
  Shard& shard = shard_of(word);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.words.find(word);
  if (found == shard.words.end()) return false;
  tokens.insert(tokens.end(), found->second.begin(), found->second.end());
  return true;
}

void WordCache::keep(std::string_view word, const std::vector<std::int32_t>& tokens) {
  if (word.size() > kLongest) return;
  Shard& shard = shard_of(word);
  const std::lock_guard lock(shard.mutex);
  // Clears the whole shard when it is full, so that the cache follows a text whose words change.
  if (shard.words.size() == kWordsOfShard) shard.words.clear();
  shard.words.emplace(word, tokens);
}

}  // namespace trireme::data::detail
