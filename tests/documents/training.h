// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/training.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>

namespace page_training {

struct MyNetworkImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images);
};
TORCH_MODULE(MyNetwork);

extern MyNetwork network;
extern torch::optim::SGD optimizer;
extern trireme::World world;
extern trireme::Model model;
extern trireme::data::DataLoader training;
extern trireme::data::DataLoader test;
extern trireme::LossMonitor monitor;
extern trireme::Callbacks callbacks;
extern trireme::Checkpoint checkpoint;
extern std::vector<trireme::data::Batch> batches;
extern std::filesystem::path folder;
extern std::int64_t n_steps;
at::Tensor my_loss(const at::Tensor& question, const at::Tensor& answer);
at::Tensor loss_of(const MyNetwork& network, const trireme::data::Batch& batch);

}  // namespace page_training
