// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/operator-strategies.md use: see extract.py.
#pragma once

#include <trireme/plan/transformer_layouts.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

namespace page_operator_strategies {

extern at::Tensor batch, weight, x, w, v;
extern torch::nn::Linear model;

}  // namespace page_operator_strategies
