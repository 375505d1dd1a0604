// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/pipeline.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <iostream>

namespace page_pipeline {

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images);
};
TORCH_MODULE(Net);

extern Net net;
extern torch::optim::SGD optimizer;
extern trireme::World world;
extern trireme::Plan plan;
extern trireme::TrainingStep pipeline;
extern trireme::TrainingStep devices;
extern trireme::graph::Forward forward, tell_apart, deceive;
extern Net gan;
extern torch::optim::SGD discriminator_optimizer, generator_optimizer;
extern at::Tensor noise;
extern torch::nn::Linear body, head;
extern std::vector<std::vector<at::Tensor>> micro_batches;
extern std::int64_t step;
std::vector<std::pair<std::string, at::Tensor>> named(const torch::nn::Module& module,
                                                      const std::string& prefix);
extern at::Tensor h, images, labels, more_images, more_labels, test_images, test_labels;
extern std::vector<at::Tensor> batch;
extern trireme::LossScale loss_scale;
extern trireme::checkpoint::SaveOptions options;
extern trireme::checkpoint::State state;
extern std::filesystem::path path;
extern std::int64_t steps;
std::vector<at::Tensor> next_batch();
void set_learning_rate(torch::optim::Optimizer& optimizer);

}  // namespace page_pipeline
