// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/recovery.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

#include <iostream>

namespace page_recovery {

extern torch::nn::Linear model;
extern torch::optim::SGD optimizer;
extern trireme::Parallelized parallelized;
extern trireme::World world;
extern std::int64_t steps;

}  // namespace page_recovery
