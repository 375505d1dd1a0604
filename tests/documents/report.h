// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/report.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

namespace page_report {

struct NetworkImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tokens);
};
TORCH_MODULE(Network);

extern Network network;

}  // namespace page_report
