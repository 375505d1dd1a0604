// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/tensor-parallel.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>

namespace page_tensor_parallel {

struct LanguageModelImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tokens);
};
TORCH_MODULE(LanguageModel);

extern LanguageModel model;
extern trireme::Plan plan;
extern trireme::World world;
extern torch::nn::Linear generator, critic;
extern torch::nn::LSTM lstm;
extern trireme::Parallelized parallel;
extern trireme::DeviceMesh mesh;
extern torch::optim::AdamW optimizer;
extern trireme::checkpoint::State state;
extern at::Tensor tokens, samples;
at::Tensor tokens_of(const trireme::DataPart& part);
at::Tensor targets_of(const trireme::DataPart& part);

}  // namespace page_tensor_parallel
