// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/planning.md use: see extract.py.
#pragma once

#include <trireme/cluster/cluster_file.h>
#include <trireme/search/search.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>

namespace page_planning {

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images);
};
TORCH_MODULE(Net);

extern Net net;
extern trireme::graph::Forward forward;
extern at::Tensor images, labels;
extern torch::optim::SGD optimizer;
extern trireme::World world;
extern trireme::data::DataLoader training;
extern trireme::data::DataLoader test;

}  // namespace page_planning
