// SPDX-License-Identifier: Apache-2.0
// A decoder of the GPT family with mixtures of experts in plain LibTorch, as a user would write it:
// Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic
// Sharding" (2021), and Fedus, Zoph, Shazeer, "Switch Transformers: Scaling to Trillion Parameter
// Models with Simple and Efficient Sparsity" (2022). An expert takes a fixed number of tokens of
// each row, so that shapes do not depend on values; with is_dropless it takes all tokens that
// choose it. Routing draws no random numbers.
#pragma once

#include <models/gpt.h>

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace models {

/// Computes experts, whose parameters [experts, …] it is given, for tokens [n, features] that are
/// sorted by expert, of which each has as many as `counts` says.
using Experts = std::function<torch::Tensor(const torch::Tensor& tokens,
                                            const std::vector<std::int64_t>& counts,
                                            const std::vector<torch::Tensor>& parameters)>;
/// Returns the results [batch, sequence, per token, hidden] of the experts that each token of
/// `features` [batch, sequence, hidden] has chosen, [batch, sequence, per token].
using RunExperts = std::function<torch::Tensor(
    const torch::Tensor& features, const torch::Tensor& chosen,
    const std::vector<torch::Tensor>& parameters, const Experts& experts)>;

/// The architecture of a GPT whose MLPs are partly mixtures of experts.
struct MixtureOptions {
  /// The sizes of the decoder. Each expert is an MLP of these sizes.
  GPTOptions gpt;
  /// The number of experts in a mixture.
  std::int64_t experts = 8;
  /// The number of experts that process a token: 1 as in Switch Transformers, 2 as in GShard.
  std::int64_t experts_per_token = 2;
  /// The number of tokens of a row that an expert takes at most, as a multiple of the number that
  /// it would take if all experts took the same; rounded up. experts / experts_per_token is enough
  /// for all tokens of a row.
  double capacity_factor = 1.25;
  /// True to let experts take all tokens that choose them, whatever capacity_factor is. Tokens are
  /// sorted by expert, as in MegaBlocks (Gale et al. 2023). Shapes then depend on values, so
  /// forward cannot be recorded.
  bool is_dropless = false;
  /// Sorts tokens and runs the experts of a dropless mixture. Empty: all experts are on this
  /// process, and forward refuses tensors without memory, as distributed ones are. With
  /// trireme::run_experts ranks may have different experts.
  RunExperts run_experts{};
  /// The last of each `interval` blocks has a mixture, the others have an MLP.
  std::int64_t interval = 2;
  /// True to count what experts take and drop in training mode, in two buffers of each mixture.
  bool counts_tokens = false;
};

/// What a mixture, or a decoder with mixtures, returns.
struct MixtureOutput {
  /// The features or logits.
  torch::Tensor output;
  /// The loss that makes tokens spread over experts, without dims; 1 for each mixture if they do.
  /// Trainings add a small multiple of it to their loss: 0.01 in Switch Transformers.
  torch::Tensor balance_loss;
};

/// A layer of experts, each an MLP. A router chooses the experts of each token.
///
/// Each of the chosen experts' outputs is multiplied by the router's probability of that expert,
/// relative to the sum over the chosen ones if they are more than one. In each row, the first
/// choices of all tokens are served before the second choices, and earlier tokens before later
/// ones. A choice that exceeds an expert's capacity contributes zeros; with is_dropless none does.
/// So rows of a batch do not influence each other. With more than one expert per token and full
/// experts, a token may influence the choices of earlier ones.
///
/// With MixtureOptions::counts_tokens, the buffers tokens_taken and tokens_dropped, int64
/// [experts], grow with each forward in training mode: by the choices that an expert has served,
/// and by those that exceeded its capacity. Set them to zero to count anew.
///
/// The parameters are router.weight [experts, hidden], input_weight [experts, hidden, 4 hidden],
/// input_bias [experts, 1, 4 hidden], output_weight [experts, 4 hidden, hidden] and output_bias
/// [experts, 1, hidden].
class MixtureOfExpertsImpl : public torch::nn::Module {
 public:
  /// Makes the module. Throws c10::Error for invalid options.
  explicit MixtureOfExpertsImpl(const MixtureOptions& options);
  /// Maps [batch, sequence, hidden] to the same shape.
  MixtureOutput forward(const torch::Tensor& features);

 private:
  MixtureOutput forward_dropless(const torch::Tensor& features);

  std::int64_t experts_;
  std::int64_t experts_per_token_;
  double capacity_factor_;
  bool is_dropless_;
  RunExperts run_experts_;  // Empty if all experts are here.
  torch::nn::Linear router_;
  torch::Tensor input_weight_, input_bias_, output_weight_, output_bias_;
  torch::Tensor tokens_taken_, tokens_dropped_;  // Undefined if tokens are not counted.
};
TORCH_MODULE(MixtureOfExperts);

/// The decoder with its head.
///
/// The submodules are those of GPT. A block with a mixture has `mixture` in place of mlp_input and
/// mlp_output. Weights are initialized from normal(0, 0.02), biases with 0, norms as the identity.
/// Throws c10::Error for invalid options and tokens.
class MixtureGPTImpl : public torch::nn::Module {
 public:
  /// Makes the module. Throws c10::Error for invalid options.
  explicit MixtureGPTImpl(const MixtureOptions& options);
  /// Maps tokens [batch, sequence], int64, to logits [batch, sequence, vocabulary]. The balance
  /// loss is the sum over the mixtures.
  MixtureOutput forward(const torch::Tensor& tokens);
  /// Returns the maximum number of tokens of a row.
  std::int64_t sequence() const { return sequence_; }

 private:
  std::int64_t sequence_;
  torch::nn::Embedding token_embedding_;
  torch::nn::Embedding position_embedding_;
  torch::nn::Dropout dropout_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_{nullptr};  // Empty if it is tied.
};
TORCH_MODULE(MixtureGPT);

}  // namespace models
