// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/rules.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

namespace page_rules {

at::Tensor smooth(const at::Tensor& x, const at::Tensor& window);
at::Tensor smooth_backward(const at::Tensor& gradient, const at::Tensor& window);
void add_my_rules();

}  // namespace page_rules
