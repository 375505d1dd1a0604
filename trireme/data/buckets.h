// SPDX-License-Identifier: Apache-2.0
// Batches of samples of about the same length, which need little padding.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::data {

/// Bucket i takes the lengths from boundaries[i - 1] to boundaries[i] - 1, the first one all below
/// boundaries[0], the last one all from the last boundary on: the convention of tf.data's
/// bucket_by_sequence_length.
struct Buckets {
  std::vector<std::int64_t> boundaries;  ///< ascending
  std::vector<std::int64_t> rows;        ///< of a batch of each bucket: one more than boundaries
};

/// Returns the length of every sample in that dimension of a column. It loads the data set once,
/// where it is not in memory anyway. Throws UsageError for a column or a dimension that is not
/// there, and get()'s errors as they are.
std::vector<std::int64_t> lengths(const Dataset& dataset, const std::string& column,
                                  std::int64_t dimension = 0);

/// Returns what `length` says of the tensors of every sample, in the order of the columns. It is
/// called on this thread; the data set is loaded once. Throws UsageError where there is no
/// function; its errors and get()'s as they are.
std::vector<std::int64_t> lengths(
    const Dataset& dataset,
    const std::function<std::int64_t(const std::vector<at::Tensor>& sample)>& length);

}  // namespace trireme::data
