// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/accelerators.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

namespace page_accelerators {

extern torch::nn::Linear net;

}  // namespace page_accelerators
