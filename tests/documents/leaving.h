// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/leaving.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <cstdint>
#include <filesystem>

namespace page_leaving {

void train_step(std::int64_t step);
std::filesystem::path save_all(std::int64_t step);

}  // namespace page_leaving
