// SPDX-License-Identifier: Apache-2.0
// The keys and values of the tokens that a decoder has seen, so that the next token alone has to be
// computed. models/generate.h uses it.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace models {

/// The keys and values of one attention. Not thread-safe.
class LayerCache {
 public:
  /// Makes an empty cache for at most `capacity` tokens. Its memory is allocated with the first.
  explicit LayerCache(std::int64_t capacity) : capacity_(capacity) {}

  /// Returns the number of tokens.
  std::int64_t length() const { return length_; }

  /// Appends keys and values, [batch, heads, tokens, head_size], and returns those of all tokens as
  /// views of the cache. Throws c10::Error if there are more tokens than the capacity, or if the
  /// rows or heads are others than before.
  std::pair<torch::Tensor, torch::Tensor> append(const torch::Tensor& keys,
                                                 const torch::Tensor& values);

  /// Forgets all tokens. The memory is kept.
  void clear() { length_ = 0; }

 private:
  std::int64_t capacity_;
  std::int64_t length_ = 0;
  torch::Tensor keys_;    // [batch, heads, capacity, head_size]
  torch::Tensor values_;  // likewise
};

/// The keys and values of all layers of a decoder. For GPT-2 with one row and 1024 tokens they take
/// 75 MB in fp32. Not thread-safe.
struct KeyValueCache {
  /// Makes an empty cache.
  KeyValueCache(std::int64_t num_layers, std::int64_t capacity)
      : layers(static_cast<std::size_t>(num_layers), LayerCache(capacity)) {}

  /// Returns the number of tokens.
  std::int64_t length() const { return layers.empty() ? 0 : layers.front().length(); }
  /// Forgets all tokens.
  void clear() {
    for (LayerCache& layer : layers) layer.clear();
  }

  std::vector<LayerCache> layers;  ///< in the order of the blocks
};

/// Attends from the last tokens of a row to all up to each, which is causal attention.
/// @param queries [batch, heads, n, head_size], of the last n tokens.
/// @param keys [batch, heads, tokens, head_size], of all of them; values likewise.
/// @return [batch, heads, n, head_size].
torch::Tensor attend_from_last(const torch::Tensor& queries, const torch::Tensor& keys,
                               const torch::Tensor& values);

}  // namespace models
