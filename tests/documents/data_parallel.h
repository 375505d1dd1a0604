// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/data-parallel.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

namespace page_data_parallel {

struct Options {};
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const Options& options);
};
TORCH_MODULE(Gpt);

extern torch::nn::Linear model;
extern torch::optim::AdamW optimizer;
extern trireme::World world;
extern Options options;

}  // namespace page_data_parallel
