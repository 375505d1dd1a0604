// SPDX-License-Identifier: Apache-2.0
#include <models/mixture.h>

#include <cmath>
#include <vector>

namespace models {
namespace {

constexpr double kInitialDeviation = 0.02;
constexpr std::int64_t kMlpExpansion = 4;

torch::nn::LayerNorm layer_norm(std::int64_t hidden) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}));
}

// Returns the probabilities [batch, sequence, experts] of the router's scores.
torch::Tensor probabilities_of(const torch::Tensor& scores) {
  return scores.softmax(-1, torch::promote_types(torch::kFloat, scores.scalar_type()));
}

// Returns what the outputs of the chosen experts are multiplied by.
// @param highest [batch, sequence, experts per token]: their probabilities.
torch::Tensor shares_of(const torch::Tensor& highest) {
  return highest.size(-1) == 1 ? highest : highest / highest.sum(-1, /*keepdim=*/true);
}

// @param is_first [batch, sequence, experts]: the first choice of each token.
torch::Tensor balance_loss_of(const torch::Tensor& is_first, const torch::Tensor& probabilities) {
  const auto first = is_first.to(probabilities.scalar_type());
  const auto products = first.mean(1) * probabilities.mean(1);
  return products.sum(-1).mean() * probabilities.size(-1);
}

// Where the tokens of each row go. Choices are ordered by first, second … choice, then by token.
struct Routing {
  torch::Tensor slots;    // [batch, choices]: expert * capacity + place; one more if it is full
  torch::Tensor weights;  // [batch, choices]: of the expert's output; 0 if the expert is full
  torch::Tensor balance_loss;  // without dims
  torch::Tensor is_chosen;     // [batch, choices, experts]
  torch::Tensor is_full;       // [batch, choices]

  // @param scores [batch, sequence, experts]: the output of the router.
  Routing(const torch::Tensor& scores, std::int64_t per_token, std::int64_t capacity) {
    const std::int64_t sequence = scores.size(1);
    const std::int64_t experts = scores.size(2);
    const auto probabilities = probabilities_of(scores);
    const auto [highest, chosen] = probabilities.topk(per_token, -1);
    const auto choices = chosen.transpose(1, 2).flatten(1);
    is_chosen = choices.unsqueeze(-1) == torch::arange(experts, choices.options());

    const auto places = is_chosen.cumsum(1).masked_fill(is_chosen.logical_not(), 0).sum(-1) - 1;
    is_full = places >= capacity;
    slots = (choices * capacity + places).masked_fill(is_full, experts * capacity);
    weights = shares_of(highest).transpose(1, 2).flatten(1).masked_fill(is_full, 0);
    balance_loss = balance_loss_of(is_chosen.narrow(1, 0, sequence), probabilities);
  }

  // Returns how many of the choices that `are_counted` [batch, choices] go to each expert.
  torch::Tensor per_expert(const torch::Tensor& are_counted) const {
    return is_chosen.logical_and(are_counted.unsqueeze(-1)).sum({0, 1});
  }
};

class MixtureBlockImpl : public torch::nn::Module {
 public:
  explicit MixtureBlockImpl(const MixtureOptions& options)
      : norm1_(register_module("norm1", layer_norm(options.gpt.hidden))),
        attention_(register_module("attention", GPTAttention(options.gpt))),
        norm2_(register_module("norm2", layer_norm(options.gpt.hidden))),
        mixture_(register_module("mixture", MixtureOfExperts(options))),
        dropout_(register_module("dropout", torch::nn::Dropout(options.gpt.dropout))) {}

  MixtureOutput forward(const torch::Tensor& features) {
    const auto attended = features + dropout_(attention_(norm1_(features)));
    const auto [mixed, balance_loss] = mixture_(norm2_(attended));
    return {.output = attended + dropout_(mixed), .balance_loss = balance_loss};
  }

 private:
  torch::nn::LayerNorm norm1_;
  GPTAttention attention_;
  torch::nn::LayerNorm norm2_;
  MixtureOfExperts mixture_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(MixtureBlock);

// Computes MLPs whose stacked parameters are those of MixtureOfExperts.
torch::Tensor mlps(const torch::Tensor& tokens, const std::vector<std::int64_t>& counts,
                   const std::vector<torch::Tensor>& parameters) {
  const auto pieces = tokens.split_with_sizes(counts);
  std::vector<torch::Tensor> results;
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    const auto of_expert = [&](std::size_t parameter) {
      return parameters[parameter][static_cast<std::int64_t>(expert)];
    };
    const auto widened = torch::gelu(torch::addmm(of_expert(1), pieces[expert], of_expert(0)));
    results.push_back(torch::addmm(of_expert(3), widened, of_expert(2)));
  }
  return torch::cat(results);
}

// A RunExperts for experts that are all on this process.
torch::Tensor run_here(const torch::Tensor& features, const torch::Tensor& chosen,
                       const std::vector<torch::Tensor>& parameters) {
  const std::int64_t experts = parameters.front().size(0);
  const auto expert_of = chosen.flatten();
  const auto order = expert_of.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto token_of = order.floor_divide(chosen.size(-1));
  const auto counted = expert_of.bincount({}, experts).cpu();
  const auto* const first = counted.const_data_ptr<std::int64_t>();
  const auto results =
      mlps(features.flatten(0, 1).index_select(0, token_of), {first, first + experts}, parameters);
  const auto places =
      torch::empty_like(order).scatter_(0, order, torch::arange(order.numel(), order.options()));
  return results.index_select(0, places).unflatten(0, chosen.sizes());
}

void check(const MixtureOptions& options) {
  TORCH_CHECK(options.experts_per_token > 0 && options.experts_per_token <= options.experts,
              "MixtureOptions.experts_per_token is ", options.experts_per_token,
              ", expected 1 to experts, which is ", options.experts);
  TORCH_CHECK(options.capacity_factor > 0, "MixtureOptions.capacity_factor is ",
              options.capacity_factor, ", expected a number above 0");
  TORCH_CHECK(options.interval > 0, "MixtureOptions.interval is ", options.interval,
              ", expected 1 or more");
  const GPTOptions& gpt = options.gpt;
  TORCH_CHECK(gpt.layers > 0 && gpt.layers % options.interval == 0, "GPTOptions.layers is ",
              gpt.layers, ", expected a multiple of MixtureOptions.interval, which is ",
              options.interval);
  TORCH_CHECK(gpt.heads > 0 && gpt.hidden % gpt.heads == 0, "GPTOptions.heads is ", gpt.heads,
              ", expected a number that divides hidden, which is ", gpt.hidden);
}

}  // namespace

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOptions& options)
    : experts_(options.experts),
      experts_per_token_(options.experts_per_token),
      capacity_factor_(options.capacity_factor),
      is_dropless_(options.is_dropless),
      run_experts_(options.run_experts),
      router_(torch::nn::LinearOptions(options.gpt.hidden, options.experts).bias(false)) {
  check(options);
  const std::int64_t hidden = options.gpt.hidden;
  const std::int64_t wide = kMlpExpansion * hidden;
  register_module("router", router_);
  input_weight_ = register_parameter("input_weight", torch::empty({experts_, hidden, wide}));
  input_bias_ = register_parameter("input_bias", torch::zeros({experts_, 1, wide}));
  output_weight_ = register_parameter("output_weight", torch::empty({experts_, wide, hidden}));
  output_bias_ = register_parameter("output_bias", torch::zeros({experts_, 1, hidden}));
  if (options.counts_tokens) {
    tokens_taken_ = register_buffer("tokens_taken", torch::zeros({experts_}, torch::kInt64));
    tokens_dropped_ = register_buffer("tokens_dropped", torch::zeros({experts_}, torch::kInt64));
  }
  const torch::NoGradGuard no_grad;
  for (auto& weight : {router_->weight, input_weight_, output_weight_}) {
    weight.normal_(0, kInitialDeviation);
  }
}

MixtureOutput MixtureOfExpertsImpl::forward_dropless(const torch::Tensor& features) {
  const auto probabilities = probabilities_of(router_(features));
  const auto [highest, chosen] = probabilities.topk(experts_per_token_, -1);
  if (!run_experts_) {
    TORCH_CHECK(chosen.has_storage() && !chosen.is_meta(), "a mixture with is_dropless was given ",
                features.sizes(),
                " without memory, as distributed tensors and those of a record are; ",
                "set run_experts to trireme::run_experts for distributed tensors; for records set ",
                "is_dropless to false, and capacity_factor to ",
                static_cast<double>(experts_) / static_cast<double>(experts_per_token_),
                " so that no token is dropped");
  }
  const std::vector<torch::Tensor> parameters = {input_weight_, input_bias_, output_weight_,
                                                 output_bias_};
  const auto results = run_experts_ ? run_experts_(features, chosen, parameters, mlps)
                                    : run_here(features, chosen, parameters);
  const auto output = (results * shares_of(highest).unsqueeze(-1)).sum(-2);
  const auto experts = torch::arange(experts_, chosen.options());
  if (tokens_taken_.defined() && is_training()) {
    const torch::NoGradGuard no_grad;
    tokens_taken_.add_((chosen.unsqueeze(-1) == experts).sum({0, 1, 2}));
  }
  return {.output = output.to(features.scalar_type()),
          .balance_loss = balance_loss_of(chosen.narrow(-1, 0, 1) == experts, probabilities)};
}

MixtureOutput MixtureOfExpertsImpl::forward(const torch::Tensor& features) {
  if (is_dropless_) return forward_dropless(features);
  const std::int64_t sequence = features.size(1);
  const std::int64_t hidden = features.size(2);
  const double even_share =
      static_cast<double>(experts_per_token_ * sequence) / static_cast<double>(experts_);
  const auto capacity = static_cast<std::int64_t>(std::ceil(capacity_factor_ * even_share));
  const Routing routing(router_(features), experts_per_token_, capacity);
  if (tokens_taken_.defined() && is_training()) {
    const torch::NoGradGuard no_grad;
    tokens_taken_.add_(routing.per_expert(routing.is_full.logical_not()));
    tokens_dropped_.add_(routing.per_expert(routing.is_full));
  }

  // The slots of each row, and one whose content is not used.
  const std::int64_t slots = experts_ * capacity;
  const auto index = routing.slots.unsqueeze(-1).expand({-1, -1, hidden});
  const auto tokens = features.repeat({1, experts_per_token_, 1});
  const auto inputs = features.new_zeros({features.size(0), slots + 1, hidden})
                          .scatter(1, index, tokens)
                          .narrow(1, 0, slots);

  // [batch, experts * capacity, hidden] to [experts, batch * capacity, hidden] and back.
  const auto of_experts = inputs.unflatten(1, {experts_, capacity}).transpose(0, 1).flatten(1, 2);
  const auto widened = torch::gelu(torch::baddbmm(input_bias_, of_experts, input_weight_));
  const auto results = torch::baddbmm(output_bias_, widened, output_weight_);
  const auto of_rows = results.unflatten(1, {-1, capacity}).transpose(0, 1).flatten(1, 2);

  const auto chosen = of_rows.gather(1, index.clamp_max(slots - 1));
  const auto weighted = chosen * routing.weights.unsqueeze(-1);
  const auto output = weighted.unflatten(1, {experts_per_token_, sequence}).sum(1);
  return {.output = output.to(features.scalar_type()), .balance_loss = routing.balance_loss};
}

MixtureGPTImpl::MixtureGPTImpl(const MixtureOptions& options)
    : sequence_(options.gpt.sequence),
      token_embedding_(options.gpt.vocabulary, options.gpt.hidden),
      position_embedding_(options.gpt.sequence, options.gpt.hidden),
      dropout_(options.gpt.dropout),
      norm_(layer_norm(options.gpt.hidden)) {
  check(options);
  const GPTOptions& gpt = options.gpt;
  register_module("token_embedding", token_embedding_);
  register_module("position_embedding", position_embedding_);
  register_module("dropout", dropout_);
  for (std::int64_t layer = 0; layer < gpt.layers; ++layer) {
    if (layer % options.interval == options.interval - 1) {
      blocks_->push_back(MixtureBlock(options));
    } else {
      blocks_->push_back(GPTBlock(gpt));
    }
  }
  register_module("blocks", blocks_);
  register_module("norm", norm_);
  if (!gpt.tied) {
    head_ = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(gpt.hidden, gpt.vocabulary).bias(false)));
  }

  const torch::NoGradGuard no_grad;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, kInitialDeviation);
      if (linear->bias.defined()) linear->bias.zero_();
    } else if (auto* embedding = module->as<torch::nn::Embedding>()) {
      embedding->weight.normal_(0, kInitialDeviation);
    }
  }
}

MixtureOutput MixtureGPTImpl::forward(const torch::Tensor& tokens) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == torch::kInt64, "tokens are ",
              tokens.scalar_type(), " ", tokens.sizes(), ", expected int64 [batch, sequence]");
  TORCH_CHECK(tokens.size(1) > 0 && tokens.size(1) <= sequence_, "rows have ", tokens.size(1),
              " tokens, expected 1 to ", sequence_, ", which is GPTOptions.sequence");
  const auto positions = torch::arange(tokens.size(1), tokens.options());
  auto features = dropout_(token_embedding_(tokens) + position_embedding_(positions));
  torch::Tensor balance_loss;
  for (const auto& block : *blocks_) {
    if (auto* mixture = block->as<MixtureBlock>()) {
      const auto mixed = mixture->forward(features);
      features = mixed.output;
      balance_loss =
          balance_loss.defined() ? balance_loss + mixed.balance_loss : mixed.balance_loss;
    } else {
      features = block->as<GPTBlock>()->forward(features);
    }
  }
  const auto outputs = norm_(features);
  const auto logits = head_ ? head_(outputs) : torch::linear(outputs, token_embedding_->weight);
  return {.output = logits, .balance_loss = balance_loss};
}

}  // namespace models
