// SPDX-License-Identifier: Apache-2.0
// Whole transformers as Megatron-LM cuts them, on meshes of one and two axes: the loss and every
// gradient are those of one process.
#include <models/gpt.h>
#include <models/llama.h>
#include <models/mixture.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/close_tensors.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {
namespace {

using testing::run_ranks;
using torch::nn::Linear;

constexpr double kBound = 1e-11;
constexpr std::int64_t kVocabulary = 50;  // more than the words of a batch, and not divisible by 4
constexpr std::int64_t kSequence = 6;
constexpr std::int64_t kHidden = 16;
constexpr std::int64_t kHeads = 4;

torch::nn::LayerNorm layer_norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden}));
}

// Self-attention with a projection each for queries, keys and values, so that columns are heads.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(bool its_is_causal) : is_causal(its_is_causal) {
    for (const char* name : {"query", "key", "value", "output"}) {
      projections.emplace_back(register_module(name, Linear(kHidden, kHidden)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto by_head = [&](std::size_t which) {
      return projections[which](x).unflatten(-1, {kHeads, -1}).transpose(1, 2);
    };
    const auto mixed =
        torch::scaled_dot_product_attention(by_head(0), by_head(1), by_head(2), {}, 0.0, is_causal);
    return projections[3](mixed.transpose(1, 2).flatten(2));
  }
  bool is_causal;
  std::vector<Linear> projections;
};
TORCH_MODULE(Attention);

// Norms before attention and MLP as in GPT, or after them as in BERT.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool its_is_gpt)
      : is_gpt(its_is_gpt),
        attention(register_module("attention", Attention(its_is_gpt))),
        up(register_module("up", Linear(kHidden, 4 * kHidden))),
        down(register_module("down", Linear(4 * kHidden, kHidden))),
        norm1(register_module("norm1", layer_norm())),
        norm2(register_module("norm2", layer_norm())) {}
  torch::Tensor mlp(const torch::Tensor& x) { return down(torch::gelu(up(x))); }
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_gpt) {
      const auto attended = x + attention(norm1(x));
      return attended + mlp(norm2(attended));
    }
    const auto attended = norm1(x + attention(x));
    return norm2(attended + mlp(attended));
  }
  bool is_gpt;
  Attention attention;
  Linear up, down;
  torch::nn::LayerNorm norm1, norm2;
};
TORCH_MODULE(Block);

// Words to a loss over all words of the vocabulary.
struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(bool is_gpt)
      : words(register_module("words", torch::nn::Embedding(kVocabulary, kHidden))),
        positions(register_module("positions", torch::nn::Embedding(kSequence, kHidden))),
        block1(register_module("block1", Block(is_gpt))),
        block2(register_module("block2", Block(is_gpt))),
        norm(register_module("norm", layer_norm())),
        head(register_module("head", Linear(kHidden, kVocabulary))) {}
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& targets) {
    const auto places = torch::arange(kSequence);
    const auto features = block2(block1(words(tokens) + positions(places)));
    const auto scores = head(norm(features));
    return torch::cross_entropy_loss(scores.flatten(0, 1), targets.flatten());
  }
  torch::nn::Embedding words, positions;
  Block block1, block2;
  torch::nn::LayerNorm norm;
  Linear head;
};
TORCH_MODULE(LanguageModel);

bool ends_with_one_of(const std::string& name, const std::vector<std::string>& ends) {
  return std::ranges::any_of(ends, [&](const std::string& end) { return name.ends_with(end); });
}

// Columns of what begins a pair of products, rows of what ends it, rows of vocabularies.
Placement placement_of(const std::string& name) {
  if (ends_with_one_of(
          name, {"query.weight", "key.weight", "value.weight", "up.weight", "head.weight",
                 "words.weight", "query.bias", "key.bias", "value.bias", "up.bias", "head.bias"})) {
    return Shard{0};
  }
  return ends_with_one_of(name, {"output.weight", "down.weight"}) ? Placement(Shard{1})
                                                                  : Placement(Replicate{});
}

void cut(torch::nn::Module& model, const DeviceMesh& mesh,
         const std::function<Placement(const std::string&)>& placement_on_tensor) {
  for (const auto& item : model.named_parameters()) {
    const Placement placement = placement_on_tensor(item.key());
    distribute_in_place(item.value(), Layout(mesh, {{"tensor", placement}}));
  }
}

// One copy a rank, made before ranks begin: numbers are drawn from one generator of all threads.
template <typename Model, typename Options>
std::vector<Model> copies_of(Model& plain, const Options& options, int ranks) {
  const torch::NoGradGuard no_grad;
  const auto state = plain->named_parameters();
  std::vector<Model> copies;
  for (int rank = 0; rank < ranks; ++rank) {
    Model& model = copies.emplace_back(options);
    model->to(torch::kDouble);
    for (auto& item : model->named_parameters()) item.value().copy_(state[item.key()]);
  }
  return copies;
}

void expect_same_gradients(const torch::nn::Module& model, const torch::nn::Module& plain) {
  const auto parameters = model.named_parameters();
  for (const auto& item : plain.named_parameters()) {
    const torch::Tensor gradient = parameters[item.key()].grad();
    ASSERT_TRUE(gradient.defined()) << item.key();
    EXPECT_TRUE(has_layout(gradient)) << item.key();
    // Not relative to the largest: that of a key's bias is 0 but for rounding.
    EXPECT_TRUE(torch::allclose(full(gradient), item.value().grad(), kBound, kBound)) << item.key();
  }
}

struct Words {
  torch::Tensor tokens =
      (torch::arange(4 * kSequence) * 7 + 3).remainder(kVocabulary).reshape({4, kSequence});
  torch::Tensor targets =
      (torch::arange(4 * kSequence) * 3 + 1).remainder(kVocabulary).reshape({4, kSequence});
};

// With and without an axis that cuts the batch.
std::vector<std::vector<MeshAxis>> meshes() {
  return {{{"tensor", 2}}, {{"tensor", 4}}, {{"data", 2}, {"tensor", 2}}};
}

int num_ranks(const std::vector<MeshAxis>& axes) {
  std::int64_t count = 1;
  for (const MeshAxis& axis : axes) count *= axis.size;
  return static_cast<int>(count);
}

Layout layout_of_batch(const DeviceMesh& mesh, int dim) {
  if (mesh.num_axes() == 1) return Layout::replicated(mesh);
  return {mesh, {{"data", Shard{dim}}}};
}

void check_language_model(bool is_gpt) {
  torch::manual_seed(3);
  LanguageModel plain(is_gpt);
  plain->to(torch::kDouble);
  const Words words;
  const auto expected = plain->forward(words.tokens, words.targets);
  expected.backward();
  for (const std::vector<MeshAxis>& axes : meshes()) {
    const int ranks = num_ranks(axes);
    std::vector<LanguageModel> models = copies_of(plain, is_gpt, ranks);
    run_ranks(ranks, [&](const comm::Group& group) {
      const DeviceMesh mesh(group, axes);
      LanguageModel& model = models[static_cast<std::size_t>(group.rank())];
      cut(*model, mesh, placement_of);
      const Layout batch = layout_of_batch(mesh, 0);
      const auto loss =
          model->forward(distribute(words.tokens, batch), distribute(words.targets, batch));
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), kBound);
      loss.backward();
      expect_same_gradients(*model, *plain);
      // The gradient of a vocabulary that is cut is made where its rows are.
      const int tensor = mesh.axis("tensor");
      for (const torch::Tensor& weight : {model->words->weight, model->head->weight}) {
        EXPECT_EQ(layout_of(weight.grad())[tensor].to_string(), "Shard(0)") << weight.sizes();
      }
    });
  }
}

TEST(DistributedModels, EncoderLikeBert) { check_language_model(/*is_gpt=*/false); }

TEST(DistributedModels, DecoderLikeGpt) { check_language_model(/*is_gpt=*/true); }

// Compares a network of models/ with one process. `loss_of` maps model, tokens and targets to a
// loss.
template <typename Model, typename Options, typename Loss>
void check_as_it_comes(const Options& options, const Loss& loss_of,
                       const std::function<Placement(const std::string&)>& placement_on_tensor) {
  torch::manual_seed(4);
  Model plain(options);
  plain->to(torch::kDouble);
  const Words words;
  const auto expected = loss_of(plain, words.tokens, words.targets);
  expected.backward();
  for (const std::vector<MeshAxis>& axes : meshes()) {
    const int ranks = num_ranks(axes);
    std::vector<Model> models = copies_of(plain, options, ranks);
    run_ranks(ranks, [&](const comm::Group& group) {
      const DeviceMesh mesh(group, axes);
      Model& model = models[static_cast<std::size_t>(group.rank())];
      cut(*model, mesh, placement_on_tensor);
      const Layout batch = layout_of_batch(mesh, 0);
      const auto loss =
          loss_of(model, distribute(words.tokens, batch), distribute(words.targets, batch));
      EXPECT_NEAR(loss.template item<double>(), expected.template item<double>(), kBound);
      loss.backward();
      expect_same_gradients(*model, *plain);
    });
  }
}

const auto kLossOfLogits = [](auto& model, const torch::Tensor& tokens,
                              const torch::Tensor& targets) {
  return torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), targets.flatten());
};

// The GPT of models/ has one product for queries, keys and values, whose columns are not heads: it
// stays whole, and the MLPs and the vocabulary are cut.
TEST(DistributedModels, GptAsItComes) {
  const models::GPTOptions options = {.vocabulary = kVocabulary,
                                      .sequence = kSequence,
                                      .hidden = kHidden,
                                      .layers = 2,
                                      .heads = kHeads,
                                      .tied = true};
  check_as_it_comes<models::GPT>(options, kLossOfLogits, [](const std::string& name) -> Placement {
    if (ends_with_one_of(name, {"mlp_input.weight", "mlp_input.bias", "token_embedding.weight"})) {
      return Shard{0};
    }
    return name.ends_with("mlp_output.weight") ? Placement(Shard{1}) : Placement(Replicate{});
  });
}

// With two heads of keys and values, four ranks share them in pairs.
TEST(DistributedModels, LlamaAsItComes) {
  for (const std::int64_t key_value_heads : {2, 4}) {
    const models::LLaMAOptions options = {.vocabulary = kVocabulary,
                                          .sequence = kSequence,
                                          .hidden = kHidden,
                                          .layers = 2,
                                          .heads = kHeads,
                                          .key_value_heads = key_value_heads,
                                          .feed_forward = 24};
    check_as_it_comes<models::LLaMA>(
        options, kLossOfLogits, [](const std::string& name) -> Placement {
          if (ends_with_one_of(name,
                               {"query.weight", "key.weight", "value.weight", "mlp_gate.weight",
                                "mlp_input.weight", "head.weight", "token_embedding.weight"})) {
            return Shard{0};
          }
          return ends_with_one_of(name, {"attention.output.weight", "mlp_output.weight"})
                     ? Placement(Shard{1})
                     : Placement(Replicate{});
        });
  }
}

// Each rank has some of the experts.
TEST(DistributedModels, MixtureOfExpertsAsItComes) {
  for (const std::int64_t experts_per_token : {1, 2}) {
    const models::MixtureOptions options = {.gpt = {.vocabulary = kVocabulary,
                                                    .sequence = kSequence,
                                                    .hidden = kHidden,
                                                    .layers = 2,
                                                    .heads = kHeads},
                                            .experts = 4,
                                            .experts_per_token = experts_per_token};
    const auto loss_of = [](models::MixtureGPT& model, const torch::Tensor& tokens,
                            const torch::Tensor& targets) {
      const auto [logits, balance_loss] = model->forward(tokens);
      return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten()) +
             0.01 * balance_loss;
    };
    check_as_it_comes<models::MixtureGPT>(
        options, loss_of, [](const std::string& name) -> Placement {
          const bool is_of_expert = ends_with_one_of(
              name, {"input_weight", "input_bias", "output_weight", "output_bias"});
          return is_of_expert ? Placement(Shard{0}) : Placement(Replicate{});
        });
  }
}

// LibTorch's own layer: its attention folds batch and heads, so that heads cannot be cut; its two
// products of the MLP can.
TEST(DistributedModels, LibtorchsEncoderLayer) {
  torch::manual_seed(5);
  const auto options = torch::nn::TransformerEncoderLayerOptions(kHidden, kHeads)
                           .dim_feedforward(3 * kHidden)
                           .dropout(0.0);
  torch::nn::TransformerEncoderLayer plain(options);
  plain->to(torch::kDouble);
  const auto input = testing::random_tensor({kSequence, 4, kHidden}, torch::kDouble, 6);
  const auto expected = plain->forward(input).square().mean();
  expected.backward();
  for (const std::vector<MeshAxis>& axes : meshes()) {
    const int ranks = num_ranks(axes);
    std::vector<torch::nn::TransformerEncoderLayer> models = copies_of(plain, options, ranks);
    run_ranks(ranks, [&](const comm::Group& group) {
      const DeviceMesh mesh(group, axes);
      auto& model = models[static_cast<std::size_t>(group.rank())];
      cut(*model, mesh, [](const std::string& name) -> Placement {
        if (name.starts_with("linear1.")) return Shard{0};
        return name == "linear2.weight" ? Placement(Shard{1}) : Placement(Replicate{});
      });
      const auto loss = model->forward(distribute(input, layout_of_batch(mesh, 1))).square().mean();
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), kBound);
      loss.backward();
      expect_same_gradients(*model, *plain);
    });
  }
}

}  // namespace
}  // namespace trireme
