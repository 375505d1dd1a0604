// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/communication.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <torch/torch.h>

#include <array>

namespace page_communication {

extern trireme::World world;

}  // namespace page_communication
