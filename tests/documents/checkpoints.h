// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/checkpoints.md use: see extract.py.
#pragma once

#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>

namespace page_checkpoints {

extern torch::nn::Linear model;
extern torch::nn::Linear plain;
extern torch::optim::SGD optimizer;
extern trireme::Parallelized parallelized;
extern trireme::checkpoint::State state;
extern trireme::DeviceMesh mesh;
extern trireme::comm::Group group;
extern trireme::World world;
extern std::int64_t epochs;
extern double loss;

}  // namespace page_checkpoints
