// SPDX-License-Identifier: Apache-2.0
// Data sets: numbered samples with named columns. Published image sets are in mnist.h, cifar10.h
// and cifar100.h, files of your own in csv.h, npy.h and token_file.h, random samples in
// random_tensors.h; dataset_views.h makes other data sets out of those.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

/// Samples 0 to size() - 1, each one CPU tensor per column. Const methods must be safe to call
/// concurrently: a data loader with several workers does.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual const std::vector<std::string>& columns() const = 0;

  /// Returns the tensors of one sample in the order of columns(); blocking where it reads files.
  /// @param index in [0, size()).
  virtual std::vector<at::Tensor> get(std::int64_t index) const = 0;

  /// Returns the whole columns [size(), ...], contiguous, where they lie in memory anyway; empty
  /// otherwise; a data loader refuses anything else. It then reads the rows where they are instead
  /// of calling get(), which saves the tensors in between.
  virtual const std::vector<at::Tensor>& stored() const;
};

/// Makes a data set of tensors in memory: row i of each is sample i. They are not copied where they
/// are contiguous, and must not be written to while a data loader reads them. Throws UsageError
/// where names repeat, first dimensions differ, or a tensor has no first dimension or is not a
/// dense one on the CPU.
std::shared_ptr<const Dataset> tensors(std::vector<std::pair<std::string, at::Tensor>> columns);

/// Makes a data set that computes its samples: `sample(index)` returns one tensor per column and is
/// called from the data loader's workers, concurrently where there are several. It must return the
/// same sample whenever it is called with the same index, else ranks and epochs disagree about the
/// data. Throws UsageError where the size is negative, there is no column or names repeat; get()
/// throws it where the function returns another number of tensors.
std::shared_ptr<const Dataset> generator(
    std::int64_t size, std::vector<std::string> columns,
    std::function<std::vector<at::Tensor>(std::int64_t)> sample);

}  // namespace trireme::data
