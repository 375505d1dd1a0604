// SPDX-License-Identifier: Apache-2.0
// Sizes of small transformers, one of each family of models/: two blocks of 16 features with four
// heads, 50 words, rows of 8 tokens or images of 8 by 8.
#pragma once

#include <models/bert.h>
#include <models/gpt.h>
#include <models/llama.h>
#include <models/vit.h>

namespace trireme::test {

inline models::GPTOptions small_gpt() {
  return {.vocabulary = 50, .sequence = 8, .hidden = 16, .layers = 2, .heads = 4};
}

inline models::LLaMAOptions small_llama() {
  return {.vocabulary = 50,
          .sequence = 8,
          .hidden = 16,
          .layers = 2,
          .heads = 4,
          .key_value_heads = 2,
          .feed_forward = 20};
}

/// Without dropout.
inline models::BERTOptions small_bert() {
  return {.vocabulary = 50, .sequence = 8, .hidden = 16, .layers = 2, .heads = 4, .dropout = 0};
}

inline models::ViTOptions small_vit() {
  return {.image_size = 8,
          .patch_size = 4,
          .hidden = 16,
          .layers = 2,
          .heads = 4,
          .feed_forward = 20,
          .classes = 5};
}

}  // namespace trireme::test
