// SPDX-License-Identifier: Apache-2.0
// Exchanges weights of the transformers of this folder with the package `transformers` of Hugging
// Face: GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM, BertForPreTraining,
// BertForSequenceClassification and ViTForImageClassification. The files that these save
// (model.safetensors) are read by trireme::checkpoint::read_safetensors.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace models {

/// The network of a module, which decides the names of its weights.
enum class Architecture {
  kGPT2,   ///< GPT with `gelu_tanh`, and usually `tied`.
  kLLaMA,  ///< LLaMA.
  kBERT,   ///< BERT with one head or both, and BERTClassifier.
  kViT,    ///< ViT.
};

/// Returns the parameters of a module under the names and in the shapes of `transformers`. The
/// tensors are views of the parameters, or copies where the layout differs. A head that shares the
/// weight of the token embedding is left out, as `transformers` does in its files.
/// Throws c10::Error if a parameter is not one of the architecture.
std::map<std::string, torch::Tensor> to_hugging_face(const torch::nn::Module& module,
                                                     Architecture architecture);

/// Copies weights that have the names and shapes of `transformers` into the parameters of a module,
/// in the dtype and on the device of each. Also finds the names of earlier files, such as those
/// of GPT-2 and BERT that were published first. Sizes are those of the module: make it with the
/// options that the model's config.json says. MLPs of GPT and BERT have four times the hidden size,
/// the heads of BERT share the token embedding, and LLaMA's rotary positions are not scaled: what
/// was trained otherwise has no equal here.
/// @param new_modules submodules of which `weights` may have nothing, such as `classifier` where a
/// pre-trained model is to be fine-tuned. Their parameters are left as they are then.
/// @return the names in `weights` that the module has no place for, such as a pooler's.
/// Throws c10::Error that names the weight if one is missing or has another shape; the module is
/// unchanged then.
std::vector<std::string> load_hugging_face(torch::nn::Module& module, Architecture architecture,
                                           const std::map<std::string, torch::Tensor>& weights,
                                           const std::vector<std::string>& new_modules = {});

}  // namespace models
