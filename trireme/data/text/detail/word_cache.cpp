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
  // A text whose words changed fills it anew.
  if (shard.words.size() == kWordsOfShard) shard.words.clear();
  shard.words.emplace(word, tokens);
}

}  // namespace trireme::data::detail
