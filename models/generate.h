// SPDX-License-Identifier: Apache-2.0
// Continues texts by decoders, token by token, with cached keys and values where a decoder has
// them.
#pragma once

#include <models/gpt.h>
#include <models/llama.h>
#include <models/mixture.h>

#include <torch/torch.h>

#include <cstdint>
#include <optional>

namespace models {

/// How a continuation is chosen.
struct GenerationOptions {
  /// The number of tokens to append.
  std::int64_t tokens = 100;
  /// Logits are divided by this number. Below 1 likely tokens become likelier. 0 always takes the
  /// likeliest token, without random numbers.
  double temperature = 1.0;
  /// Draws from this many of the likeliest tokens only (Fan, Lewis, Dauphin 2018); 0 for all.
  std::int64_t top_k = 0;
  /// Draws from the smallest set of likeliest tokens whose probabilities sum to at least this
  /// number, in (0, 1] (Holtzman et al. 2020).
  double top_p = 1.0;
  /// The seed of the random numbers.
  std::uint64_t seed = 0;
  /// The token that ends a text. The rest of a row after it is filled with it, and generation ends
  /// when all rows have ended.
  std::optional<std::int64_t> end_token{};
  /// False to compute all tokens of a row again for each new one. The tokens are the same, except
  /// where rounding decides between two of them.
  bool caches = true;
};

/// Returns prompts with their continuations, [batch, prompt + up to `tokens`], on the device of the
/// prompt.
///
/// The model runs in evaluation mode and without gradients; its mode is restored. A row may become
/// longer than the model's sequence. When it does, the model goes on from the last half of its
/// sequence. Random numbers are drawn on the CPU. Throws c10::Error for options that are not
/// allowed, and for a prompt that is not int64 [batch, 1 or more].
/// @param model the decoder, with whole parameters.
/// @param prompt [batch, tokens], int64, on the device of the model.
torch::Tensor generate(GPT& model, const torch::Tensor& prompt,
                       const GenerationOptions& options = {});
/// Does the same with a LLaMA.
torch::Tensor generate(LLaMA& model, const torch::Tensor& prompt,
                       const GenerationOptions& options = {});
/// Does the same with a mixture of experts, which keeps no keys and values: experts that are full
/// may choose otherwise for earlier tokens when a row grows.
torch::Tensor generate(MixtureGPT& model, const torch::Tensor& prompt,
                       const GenerationOptions& options = {});

/// Returns the probabilities from which the next token is drawn, [batch, vocabulary], of logits of
/// this shape: first the temperature applies, then top_k, then top_p. A temperature of 0 gives
/// probability 1 to the likeliest token.
torch::Tensor sampling_probabilities(const torch::Tensor& logits, const GenerationOptions& options);

}  // namespace models
