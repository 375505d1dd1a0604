// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/configuration.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

namespace page_configuration {

struct Crop {
  std::int64_t size = 0;
};

}  // namespace page_configuration
