// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/checkpoints.md use: see extract.py.
#pragma once

#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>

namespace page_checkpoints {

using namespace trireme;
using namespace trireme::checkpoint;

extern torch::nn::Linear model;
extern torch::nn::Linear plain;
extern torch::optim::SGD optimizer;
extern Parallelized parallelized;
extern State state;
extern DeviceMesh mesh;
extern comm::Group group;
extern World world;
extern std::int64_t epochs;
extern double loss;

}  // namespace page_checkpoints
