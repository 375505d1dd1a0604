// SPDX-License-Identifier: Apache-2.0
// The C++ side of the parity test in this folder:
//   pretrained_parity <architecture> <weights> <inputs> <logits> <weights again>
// loads weights that `transformers` wrote, computes logits of the inputs in double precision, and
// writes both the logits and the weights. Decoders also continue the first half of each row.
#include <models/generate.h>
#include <models/pretrained.h>
#include <trireme/checkpoint/safetensors.h>

#include <tests/small_transformers.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

using trireme::checkpoint::TensorMap;

struct Network {
  models::Architecture architecture;
  std::shared_ptr<torch::nn::Module> module;
  std::function<TensorMap(const TensorMap&)> forward;
};

// Of a module that maps tokens or images to logits.
template <class Module>
Network network_of(models::Architecture architecture, Module net, const char* input) {
  return {architecture, net.ptr(), [net, input](const TensorMap& inputs) mutable {
            return TensorMap{{"logits", net(inputs.at(input))}};
          }};
}

// Of a decoder, with its likeliest continuation of each row, and with probabilities by which it
// would draw the token after the row.
template <class Module>
Network decoder_of(models::Architecture architecture, Module net) {
  return {architecture, net.ptr(), [net](const TensorMap& inputs) mutable {
            const torch::Tensor& tokens = inputs.at("tokens");
            const auto logits = net(tokens);
            return TensorMap{
                {"logits", logits},
                {"continuation", models::generate(net, tokens.narrow(1, 0, 3).contiguous(),
                                                  {.tokens = 5, .temperature = 0})},
                {"probabilities",
                 models::sampling_probabilities(logits.select(1, -1),
                                                {.temperature = 0.7, .top_k = 20, .top_p = 0.8})}};
          }};
}

// Of an encoder with a head of some kind.
template <class Module>
Network bert_of(Module net) {
  return {models::Architecture::kBERT, net.ptr(), [net](const TensorMap& inputs) mutable {
            return TensorMap{{"logits", net(inputs.at("tokens"), inputs.at("segments"),
                                            inputs.at("is_padding"))}};
          }};
}

// With both heads of pre-training.
Network pretraining_bert() {
  models::BERTOptions options = trireme::test::small_bert();
  options.next_sentence = true;
  options.norm_epsilon = 0.1;
  models::BERT net(options);
  return {models::Architecture::kBERT, net.ptr(), [net](const TensorMap& inputs) mutable {
            const models::BERTLogits logits = net->pretraining_logits(
                inputs.at("tokens"), inputs.at("segments"), inputs.at("is_padding"));
            return TensorMap{{"prediction_logits", logits.tokens},
                             {"seq_relationship_logits", logits.next_sentence}};
          }};
}

// pretrained_parity.py has the same sizes.
Network make(const std::string& architecture) {
  if (architecture == "gpt2" || architecture == "gpt2_untied") {
    models::GPTOptions options = trireme::test::small_gpt();
    options.tied = architecture == "gpt2";
    options.gelu_tanh = true;
    return decoder_of(models::Architecture::kGPT2, models::GPT(options));
  }
  if (architecture == "llama") {
    return decoder_of(models::Architecture::kLLaMA, models::LLaMA(trireme::test::small_llama()));
  }
  if (architecture == "bert") return bert_of(models::BERT(trireme::test::small_bert()));
  if (architecture == "bert_pretraining") return pretraining_bert();
  if (architecture == "bert_classifier") {
    return bert_of(models::BERTClassifier(trireme::test::small_bert(), 3));
  }
  if (architecture == "vit") {
    models::ViTOptions options = trireme::test::small_vit();
    options.norm_epsilon = 1e-12;
    return network_of(models::Architecture::kViT, models::ViT(options), "images");
  }
  throw std::runtime_error("no architecture '" + architecture + "'");
}

void run(const std::string& architecture, const std::string& weights, const std::string& inputs,
         const std::string& logits, const std::string& weights_again) {
  Network network = make(architecture);
  network.module->to(torch::kDouble);
  network.module->eval();
  const auto unused =
      models::load_hugging_face(*network.module, network.architecture,
                                trireme::checkpoint::read_safetensors(weights).tensors);
  for (const std::string& name : unused) std::printf("unused: %s\n", name.c_str());
  const torch::NoGradGuard no_grad;
  trireme::checkpoint::write_safetensors(
      logits, network.forward(trireme::checkpoint::read_safetensors(inputs).tensors));
  trireme::checkpoint::write_safetensors(
      weights_again, models::to_hugging_face(*network.module, network.architecture));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) throw std::runtime_error("expected an architecture and four files");
  run(argv[1], argv[2], argv[3], argv[4], argv[5]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "pretrained_parity: %s\n", error.what());
  return 1;
}
