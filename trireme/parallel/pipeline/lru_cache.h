// SPDX-License-Identifier: Apache-2.0
// LruCache: a small map from texts to values that drops the least recently used value when it is
// full.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <utility>

namespace trireme::pipeline {

/// A cache for few values: find() compares keys one by one. Its content depends only on the
/// sequence of find() and add(), so ranks that make the same calls hold the same keys. Not
/// thread-safe.
template <typename Value>
class LruCache {
 public:
  /// @param most the maximum number of values, 1 or more.
  explicit LruCache(std::size_t most) : most_(most) {}

  /// Returns the value of a key and marks it as used, or returns null if the cache does not hold
  /// it.
  Value* find(const std::string& key) {
    const auto found = std::ranges::find(items_, key, &Item::first);
    if (found == items_.end()) return nullptr;
    items_.splice(items_.begin(), items_, found);
    return found->second.get();
  }

  /// Adds a value, and drops the least recently used one if the cache is full.
  /// @param key a key that the cache does not hold.
  Value& add(std::string key, std::unique_ptr<Value> value) {
    items_.emplace_front(std::move(key), std::move(value));
    if (items_.size() > most_) items_.pop_back();
    return *items_.front().second;
  }

  void clear() { items_.clear(); }

 private:
  using Item = std::pair<std::string, std::unique_ptr<Value>>;

  std::size_t most_;
  std::list<Item> items_;  // the most recently used first
};

}  // namespace trireme::pipeline
