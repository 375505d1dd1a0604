// SPDX-License-Identifier: Apache-2.0
// The C++ side of the parity test in this folder:
//   models_parity <name> <out>   one training pass of a network with random parameters in double
//                                precision; writes parameters (`model.*`), inputs and targets,
//                                logits, loss and gradients (`gradient.*`)
#include <models/llama.h>
#include <models/mixture.h>
#include <models/vit.h>
#include <trireme/checkpoint/safetensors.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace {

using trireme::checkpoint::TensorMap;

constexpr std::int64_t kVocabulary = 31;
constexpr std::int64_t kClasses = 5;

struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  torch::Tensor inputs;
  torch::Tensor targets;
};

// models_parity.py has the same sizes.
Network make_llama(std::int64_t key_value_heads, double rotary_base, bool tied) {
  models::LLaMA net(models::LLaMAOptions{.vocabulary = kVocabulary,
                                         .sequence = 16,
                                         .hidden = 24,
                                         .layers = 2,
                                         .heads = 4,
                                         .key_value_heads = key_value_heads,
                                         .feed_forward = 20,
                                         .rotary_base = rotary_base,
                                         .tied = tied});
  return {.module = net.ptr(),
          .forward = [net](const torch::Tensor& tokens) mutable { return net(tokens); },
          .inputs = torch::randint(kVocabulary, {3, 16}),
          .targets = torch::randint(kVocabulary, {3, 16})};
}

// Experts are full: with a factor of 0.75, choices are left out.
Network make_mixture(std::int64_t experts_per_token) {
  models::MixtureGPT net(models::MixtureOptions{
      .gpt = {.vocabulary = kVocabulary, .sequence = 16, .hidden = 24, .layers = 2, .heads = 4},
      .experts = 4,
      .experts_per_token = experts_per_token,
      .capacity_factor = 0.75});
  return {.module = net.ptr(),
          .forward =
              [net](const torch::Tensor& tokens) mutable {
                const auto [logits, balance_loss] = net(tokens);
                return logits * (1 + balance_loss);  // so that both have a gradient
              },
          .inputs = torch::randint(kVocabulary, {3, 16}),
          .targets = torch::randint(kVocabulary, {3, 16})};
}

Network make_vit() {
  models::ViT net(models::ViTOptions{.image_size = 12,
                                     .patch_size = 4,
                                     .channels = 2,
                                     .hidden = 24,
                                     .layers = 2,
                                     .heads = 4,
                                     .feed_forward = 20,
                                     .classes = kClasses});
  return {.module = net.ptr(),
          .forward = [net](const torch::Tensor& images) mutable { return net(images); },
          .inputs = torch::randn({3, 2, 12, 12}, torch::kDouble),
          .targets = torch::randint(kClasses, {3})};
}

Network make_network(const std::string& name) {
  if (name == "llama") return make_llama(2, 10000, false);
  if (name == "llama_tied") return make_llama(4, 100, true);
  if (name == "mixture_1") return make_mixture(1);
  if (name == "mixture_2") return make_mixture(2);
  if (name == "vit") return make_vit();
  throw std::invalid_argument("no network " + name);
}

void train_once(const std::string& name, const std::string& out) {
  torch::manual_seed(1);
  const Network net = make_network(name);
  net.module->to(torch::kDouble);
  TensorMap result{{"inputs", net.inputs}, {"targets", net.targets}};
  const auto parameters = net.module->named_parameters();
  for (const auto& item : parameters) {
    const torch::NoGradGuard no_grad;
    const bool is_norm = item.key().find("norm") != std::string::npos;
    item.value().normal_(is_norm ? 1 : 0, 0.3);
    result["model." + item.key()] = item.value().detach().clone();
  }
  const auto logits = net.forward(net.inputs);
  const auto loss = torch::cross_entropy_loss(logits.flatten(0, -2), net.targets.flatten());
  loss.backward();
  result["logits"] = logits.detach();
  result["loss"] = loss.detach();
  for (const auto& item : parameters) result["gradient." + item.key()] = item.value().grad();
  trireme::checkpoint::write_safetensors(out, result);
}

}  // namespace

int main(int count, char** values) {
  const std::span arguments(values, static_cast<std::size_t>(count));
  if (arguments.size() != 3) {
    std::fputs("usage: models_parity <name> <out>\n", stderr);
    return 2;
  }
  try {
    train_once(arguments[1], arguments[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
