// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/context-parallel.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

namespace page_context_parallel {

struct LanguageModelImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tokens);
};
TORCH_MODULE(LanguageModel);

at::Tensor tokens_of(const trireme::DataPart& part);
at::Tensor targets_of(const trireme::DataPart& part);

}  // namespace page_context_parallel
