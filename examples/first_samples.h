// SPDX-License-Identifier: Apache-2.0
// The beginning of a data set, for short runs of the examples.
#pragma once

#include <trireme/data/dataset.h>

#include <algorithm>
#include <memory>

namespace examples {

/// Returns the first `count` samples; all of them where `count` is 0 or there are fewer.
inline std::shared_ptr<const trireme::data::Dataset> first_samples(
    std::shared_ptr<const trireme::data::Dataset> all, std::int64_t count) {
  if (count == 0 || count >= all->size()) return all;
  return trireme::data::generator(count, all->columns(),
                                  [all](std::int64_t index) { return all->get(index); });
}

}  // namespace examples
