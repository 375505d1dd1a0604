// SPDX-License-Identifier: Apache-2.0
#include <models/generate.h>

#include <algorithm>
#include <limits>

namespace models {
namespace {

void check(const GenerationOptions& options, const torch::Tensor& prompt) {
  TORCH_CHECK(prompt.dim() == 2 && prompt.scalar_type() == torch::kInt64 && prompt.size(0) > 0 &&
                  prompt.size(1) > 0,
              "the prompt is ", prompt.scalar_type(), " ", prompt.sizes(),
              ", expected int64 [batch, tokens] with 1 or more of both");
  TORCH_CHECK(options.tokens >= 0, "GenerationOptions.tokens is ", options.tokens,
              ", expected 0 or more");
  TORCH_CHECK(options.temperature >= 0, "GenerationOptions.temperature is ", options.temperature,
              ", expected 0 or more");
  TORCH_CHECK(options.top_k >= 0, "GenerationOptions.top_k is ", options.top_k,
              ", expected 0 or more");
  TORCH_CHECK(options.top_p > 0 && options.top_p <= 1, "GenerationOptions.top_p is ", options.top_p,
              ", expected above 0 to 1");
}

// Returns the next token of each row, [batch].
torch::Tensor choose(const torch::Tensor& logits, const GenerationOptions& options,
                     at::Generator& generator) {
  if (options.temperature == 0) return logits.argmax(-1);
  const auto probabilities = sampling_probabilities(logits, options).cpu();
  return torch::multinomial(probabilities, 1, /*replacement=*/false, generator)
      .squeeze(1)
      .to(logits.device());
}

// Restores the mode of a module.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module.eval();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() { module_.train(was_training_); }

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

// A decoder without a cache, in the form of one with it.
class Uncached {
 public:
  explicit Uncached(MixtureGPT& model) : model_(model) {}
  torch::nn::Module& operator*() { return *model_; }
  Uncached* operator->() { return this; }
  std::int64_t sequence() const { return model_->sequence(); }
  static KeyValueCache make_cache() { return {0, 0}; }  // stays empty, so all tokens are passed
  torch::Tensor next_logits(const torch::Tensor& tokens, KeyValueCache& /*cache*/) {
    return model_(tokens).output;
  }

 private:
  MixtureGPT& model_;
};

template <class Model>
torch::Tensor generate_by(Model& model, const torch::Tensor& prompt,
                          const GenerationOptions& options) {
  check(options, prompt);
  const torch::NoGradGuard no_gradients;
  const EvaluationMode evaluation(*model);
  auto generator = at::detail::createCPUGenerator(options.seed);
  const std::int64_t sequence = model->sequence();
  KeyValueCache cache = model->make_cache();
  torch::Tensor has_ended = torch::zeros({prompt.size(0)}, prompt.options().dtype(torch::kBool));
  torch::Tensor rows =
      torch::empty({prompt.size(0), prompt.size(1) + options.tokens}, prompt.options());
  std::int64_t length = prompt.size(1);
  rows.narrow(1, 0, length).copy_(prompt);
  std::int64_t begin = 0;  // The model sees the tokens from here on.
  for (; length < rows.size(1); ++length) {
    if (length - begin > sequence) {
      begin = length - std::max<std::int64_t>(1, sequence / 2);
      cache.clear();
    }
    if (!options.caches) cache.clear();
    const std::int64_t seen = begin + cache.length();
    const auto logits = model->next_logits(rows.narrow(1, seen, length - seen), cache);
    auto next = choose(logits.select(1, -1), options, generator);
    if (options.end_token) {
      next = next.masked_fill(has_ended, *options.end_token);
      has_ended = has_ended.logical_or(next.eq(*options.end_token));
    }
    rows.select(1, length).copy_(next);
    if (options.end_token && has_ended.all().item<bool>()) return rows.narrow(1, 0, length + 1);
  }
  return rows;
}

}  // namespace

torch::Tensor sampling_probabilities(const torch::Tensor& logits,
                                     const GenerationOptions& options) {
  if (options.temperature == 0) {
    return torch::zeros_like(logits).scatter(-1, logits.argmax(-1, /*keepdim=*/true), 1);
  }
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  auto scaled = logits / options.temperature;
  if (options.top_k > 0 && options.top_k < logits.size(-1)) {
    const auto least = std::get<0>(scaled.topk(options.top_k)).narrow(-1, options.top_k - 1, 1);
    scaled = scaled.masked_fill(scaled.lt(least), kNever);
  }
  auto probabilities = torch::softmax(scaled, -1);
  if (options.top_p < 1) {
    const auto [sorted, order] = probabilities.sort(-1, /*descending=*/true);
    const auto likelier = sorted.cumsum(-1) - sorted;  // the sum of all before each
    const auto kept = sorted.masked_fill(likelier.ge(options.top_p), 0);
    probabilities = torch::zeros_like(probabilities).scatter(-1, order, kept);
    probabilities = probabilities / probabilities.sum(-1, /*keepdim=*/true);
  }
  return probabilities;
}

torch::Tensor generate(GPT& model, const torch::Tensor& prompt, const GenerationOptions& options) {
  return generate_by(model, prompt, options);
}

torch::Tensor generate(LLaMA& model, const torch::Tensor& prompt,
                       const GenerationOptions& options) {
  return generate_by(model, prompt, options);
}

torch::Tensor generate(MixtureGPT& model, const torch::Tensor& prompt,
                       const GenerationOptions& options) {
  Uncached uncached(model);
  return generate_by(uncached, prompt, options);
}

}  // namespace models
