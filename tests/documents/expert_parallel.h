// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/expert-parallel.md use: see extract.py.
#pragma once

#include <models/mixture.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <utility>

namespace page_expert_parallel {

struct MixtureModelImpl : torch::nn::Module {
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& tokens);
};
TORCH_MODULE(MixtureModel);

at::Tensor tokens_of(const trireme::DataPart& part);
at::Tensor targets_of(const trireme::DataPart& part);

extern at::Tensor own_tokens;
extern trireme::Plan plan;
extern trireme::Parallelized parallel;
extern MixtureModel model;
extern trireme::Model trainer;
extern trireme::data::DataLoader training;
extern trireme::data::DataLoader validation;

}  // namespace page_expert_parallel
