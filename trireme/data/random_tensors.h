// SPDX-License-Identifier: Apache-2.0
// Data sets out of nothing, for tests and measurements: as many samples as you like, none of them
// on a disk or in memory.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// What the samples of one column are.
struct RandomColumn {
  std::string name;
  std::vector<std::int64_t> sizes = {};  ///< of a sample; empty is a single number []
  at::ScalarType dtype = at::kFloat;     ///< kFloat, kDouble, kByte, kInt or kLong

  /// Integers are in [0, bound), each equally likely. Floating-point numbers are normal with mean 0
  /// and standard deviation 1.
  std::int64_t bound = 256;
};

/// Makes a data set of random tensors. Sample i depends on (seed, i) and its columns alone, never
/// on the number of samples, on other ranks or on what was asked for before; it shares no numbers
/// with the transforms of a data loader of the same seed. Throws UsageError where the size is
/// negative, there is no column or names repeat, and for another dtype, a negative side or a bound
/// that is not positive or that the dtype cannot hold.
std::shared_ptr<const Dataset> random_tensors(std::int64_t size, std::vector<RandomColumn> columns,
                                              std::uint64_t seed = 0);

/// Makes images of noise: "image" uint8 [channels, height, width], and "label" int64 [] in [0,
/// classes), which has nothing to do with the image. Throws UsageError as random_tensors() does.
std::shared_ptr<const Dataset> random_images(std::int64_t size, std::int64_t channels,
                                             std::int64_t height, std::int64_t width,
                                             std::int64_t classes = 10, std::uint64_t seed = 0);

}  // namespace trireme::data
