// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/watching.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

#include <chrono>
#include <cstdint>

namespace page_watching {

extern std::int64_t step;
extern std::int64_t steps;
extern std::int64_t rows_of_all_ranks;

}  // namespace page_watching
