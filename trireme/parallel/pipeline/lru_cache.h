// SPDX-License-Identifier: Apache-2.0
// Values by key, of which those go that were not used for longest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <utility>

namespace trireme::pipeline {

/// For few values, since keys are compared one by one. Ranks that find and add the same keys in the
/// same order have the same values. Not thread-safe.
template <typename Value>
class LruCache {
 public:
  /// @param most how many values are kept, 1 or more.
  explicit LruCache(std::size_t most) : most_(most) {}

  /// Null for a key that is not there, or not any more.
  Value* find(const std::string& key) {
    const auto found = std::ranges::find(items_, key, &Item::first);
    if (found == items_.end()) return nullptr;
    items_.splice(items_.begin(), items_, found);
    return found->second.get();
  }

  /// @param key one that find() does not find.
  Value& add(std::string key, std::unique_ptr<Value> value) {
    items_.emplace_front(std::move(key), std::move(value));
    if (items_.size() > most_) items_.pop_back();
    return *items_.front().second;
  }

  void clear() { items_.clear(); }

 private:
  using Item = std::pair<std::string, std::unique_ptr<Value>>;

  std::size_t most_;
  std::list<Item> items_;  // the last used first
};

}  // namespace trireme::pipeline
