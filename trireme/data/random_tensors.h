// SPDX-License-Identifier: Apache-2.0
// Data sets of random samples for tests and measurements. They are computed on request and take no
// space on disk or in memory.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// Describes the samples of one random column.
struct RandomColumn {
  /// The name of the column.
  std::string name;
  /// The shape of a sample; empty for a single number [].
  std::vector<std::int64_t> sizes = {};
  /// The dtype: kFloat, kDouble, kByte, kInt or kLong.
  at::ScalarType dtype = at::kFloat;

  /// The exclusive upper bound of integers, which are uniform in [0, bound). Floating-point columns
  /// ignore it: they are normally distributed with mean 0 and standard deviation 1.
  std::int64_t bound = 256;
};

/// Makes a data set of random tensors.
///
/// Sample i depends only on `seed`, i and the columns. It does not depend on the number of samples,
/// on other ranks or on earlier requests. It shares no random numbers with the transforms of a data
/// loader that has the same seed.
/// @throws UsageError if
/// - the size is negative, there is no column or names repeat,
/// - a column has another dtype or a negative size, or
/// - a bound is not positive or too large for the dtype.
std::shared_ptr<const Dataset> random_tensors(std::int64_t size, std::vector<RandomColumn> columns,
                                              std::uint64_t seed = 0);

/// Makes a data set of noise images: "image", uint8 [channels, height, width], and "label", int64
/// [] in [0, classes). The label is independent of the image. Throws UsageError like
/// random_tensors().
std::shared_ptr<const Dataset> random_images(std::int64_t size, std::int64_t channels,
                                             std::int64_t height, std::int64_t width,
                                             std::int64_t classes = 10, std::uint64_t seed = 0);

}  // namespace trireme::data
