// SPDX-License-Identifier: Apache-2.0
// Buckets by length: batches of samples of about the same length, which need little padding.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::data {

/// The ranges of lengths that go into common batches, and the batch size of each range.
///
/// Bucket i takes the lengths from boundaries[i - 1] up to but excluding boundaries[i]. The first
/// bucket takes all lengths below boundaries[0]; the last one takes all lengths from the last
/// boundary on. This is the convention of tf.data's bucket_by_sequence_length.
struct Buckets {
  /// The boundaries between the buckets, in strictly ascending order.
  std::vector<std::int64_t> boundaries;
  /// The number of rows of a batch of each bucket: one entry more than `boundaries`.
  std::vector<std::int64_t> rows;
};

/// Returns the size of one dimension of a column for every sample.
///
/// Loads every sample once, unless the data set is in memory (Dataset::stored); then all samples
/// have the same length. Throws UsageError if the column or the dimension does not exist. Errors of
/// Dataset::get() pass through unchanged.
/// @param dataset the data set to measure.
/// @param column the name of the column.
/// @param dimension the dimension of a sample; negative values count from the last one.
std::vector<std::int64_t> lengths(const Dataset& dataset, const std::string& column,
                                  std::int64_t dimension = 0);

/// Returns `length(sample)` for every sample.
///
/// `length` receives the tensors of a sample in the order of the columns and is called on this
/// thread. Every sample is loaded once. Throws UsageError if `length` is empty. Errors of `length`
/// and of Dataset::get() pass through unchanged.
std::vector<std::int64_t> lengths(
    const Dataset& dataset,
    const std::function<std::int64_t(const std::vector<at::Tensor>& sample)>& length);

}  // namespace trireme::data
