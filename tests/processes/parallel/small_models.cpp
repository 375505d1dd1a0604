// SPDX-License-Identifier: Apache-2.0
#include <tests/processes/parallel/small_models.h>

#include <models/gpt.h>
#include <models/resnet.h>

#include <stdexcept>

namespace trireme::test {
namespace {

constexpr std::int64_t kWords = 31;
constexpr std::int64_t kTime = 8;

struct LstmImpl : torch::nn::Module {
  LstmImpl() {
    words = register_module("words", torch::nn::Embedding(kWords, 12));
    lstm = register_module(
        "lstm", torch::nn::LSTM(
                    torch::nn::LSTMOptions(12, 16).num_layers(2).dropout(0.2).batch_first(true)));
    out = register_module("out", torch::nn::Linear(16, kWords));
  }

  torch::Tensor forward(const torch::Tensor& text) { return out(std::get<0>(lstm(words(text)))); }

  torch::nn::Embedding words{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Lstm);

at::Generator generator_of(int step, std::int64_t micro_batch) {
  return at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000L * step + micro_batch));
}

template <typename Network>
SmallModel classifier(Network network, const std::vector<std::int64_t>& sizes,
                      std::int64_t classes) {
  return {network.ptr(), [network, sizes, classes](int step, std::int64_t micro_batch) mutable {
            at::Generator generator = generator_of(step, micro_batch);
            const torch::Tensor input = torch::rand(sizes, generator, torch::kFloat);
            const torch::Tensor target =
                torch::randint(classes, {sizes[0]}, generator, torch::kLong);
            return torch::cross_entropy_loss(network->forward(input), target);
          }};
}

// Predicts the next word.
template <typename Network>
SmallModel language_model(Network network) {
  return {
      network.ptr(), [network](int step, std::int64_t micro_batch) mutable {
        at::Generator generator = generator_of(step, micro_batch);
        const torch::Tensor text = torch::randint(kWords, {2, kTime + 1}, generator, torch::kLong);
        const torch::Tensor logits = network->forward(text.narrow(1, 0, kTime));
        return torch::cross_entropy_loss(logits.flatten(0, 1), text.narrow(1, 1, kTime).flatten());
      }};
}

}  // namespace

SmallModel make_small_model(const std::string& name, std::uint64_t seed) {
  torch::manual_seed(seed);
  if (name == "mlp") {
    return classifier(torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                                            torch::nn::Linear(64, 32), torch::nn::ReLU(),
                                            torch::nn::Linear(32, 5)),
                      {6, 16}, 5);
  }
  if (name == "resnet") {
    return classifier(
        models::ResNet(models::ResNetOptions{
            .stem = models::Stem::kSmall, .blocks = {1, 1}, .width = 8, .classes = 5}),
        {3, 3, 8, 8}, 5);
  }
  if (name == "gpt") {
    return language_model(models::GPT(models::GPTOptions{.vocabulary = kWords,
                                                         .sequence = kTime,
                                                         .hidden = 16,
                                                         .layers = 2,
                                                         .heads = 2,
                                                         .dropout = 0.1,
                                                         .tied = true}));
  }
  if (name == "lstm") return language_model(Lstm());
  throw std::invalid_argument("no small model " + name);
}

}  // namespace trireme::test
