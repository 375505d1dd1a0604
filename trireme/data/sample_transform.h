// SPDX-License-Identifier: Apache-2.0
// Transforms of several columns of a sample at once, for DataLoader::map_columns.
#pragma once

#include <trireme/data/named_function.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::data {

/// A named function of some columns of one sample. It takes the tensors in the order in which
/// DataLoader::map_columns() names the columns, and returns one tensor for each resulting column.
class SampleTransform : public NamedFunction<std::vector<at::Tensor>> {
 public:
  using NamedFunction::NamedFunction;
};

}  // namespace trireme::data
