// SPDX-License-Identifier: Apache-2.0
// Data sets: numbered samples with named columns. Published image sets are in mnist.h and
// cifar.h. Readers for your own files are in csv.h, npy.h and token_file.h; random samples
// are in random_tensors.h. dataset_views.h derives data sets from other data sets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

/// A data set with samples 0 to size() - 1, each of which has one CPU tensor per column.
///
/// Const methods must be safe to call concurrently, because a data loader with several workers does
/// so.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Returns the number of samples.
  virtual std::int64_t size() const = 0;
  /// Returns the names of the columns.
  virtual const std::vector<std::string>& columns() const = 0;

  /// Returns the tensors of one sample in the order of columns(). Blocks if it reads files.
  /// @param index the number of the sample, in [0, size()).
  virtual std::vector<at::Tensor> get(std::int64_t index) const = 0;

  /// Returns the whole columns, contiguous tensors [size(), ...], if they are in memory; otherwise
  /// an empty vector.
  ///
  /// If the columns are stored, a data loader reads the rows in place instead of calling get(),
  /// which saves a tensor per sample. It refuses any other value.
  virtual const std::vector<at::Tensor>& stored() const;
};

/// Makes a data set of tensors in memory: row i of each tensor is sample i.
///
/// Contiguous tensors are not copied. They must not be written to while a data loader reads them.
/// @throws UsageError if names repeat, the first dimensions differ, or a tensor has no dimensions
/// or is not a dense tensor on the CPU.
std::shared_ptr<const Dataset> tensors(std::vector<std::pair<std::string, at::Tensor>> columns);

/// Makes a data set that computes its samples.
///
/// `sample(index)` returns one tensor per column. The workers of the data loader call it,
/// concurrently if there are several. It must return the same sample for the same index every time;
/// otherwise ranks and epochs disagree about the data.
/// @throws UsageError if the size is negative, there is no column or names repeat. get() throws it
/// if the function returns another number of tensors.
std::shared_ptr<const Dataset> generator(
    std::int64_t size, std::vector<std::string> columns,
    std::function<std::vector<at::Tensor>(std::int64_t)> sample);

}  // namespace trireme::data
