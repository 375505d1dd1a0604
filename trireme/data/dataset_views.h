// SPDX-License-Identifier: Apache-2.0
// Data sets derived from other data sets: some of the samples, several sets in sequence or side by
// side, or other columns. A view copies nothing and keeps the underlying data set alive. An error
// from get() contains the sample number of the underlying data set; a data loader prepends that of
// the view. The functions take, skip, zip, select_columns and rename_columns keep
// Dataset::stored().
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

// All of these functions throw UsageError if a data set is null.

/// Returns the first `count` samples, or all if there are fewer, like std::views::take. Throws
/// UsageError if `count` is negative.
std::shared_ptr<const Dataset> take(std::shared_ptr<const Dataset> dataset, std::int64_t count);

/// Returns all samples after the first `count`, possibly none, like std::views::drop. Throws
/// UsageError if `count` is negative.
std::shared_ptr<const Dataset> skip(std::shared_ptr<const Dataset> dataset, std::int64_t count);

/// Returns a data set whose sample i is sample indices[i]. An index may occur several times. Throws
/// UsageError with the first index that is outside the data set, and its position.
std::shared_ptr<const Dataset> subset(std::shared_ptr<const Dataset> dataset,
                                      std::vector<std::int64_t> indices);

/// Returns all samples of the first data set, then all of the second, and so on.
/// @throws UsageError if the list is empty or the columns are not the same in the same order. The
/// message names the first data set and column that differ.
std::shared_ptr<const Dataset> concatenate(std::vector<std::shared_ptr<const Dataset>> datasets);

/// Returns a data set whose sample i has the columns of sample i of `first`, then those of
/// `second`. Throws UsageError if the sizes differ or a column name is in both.
std::shared_ptr<const Dataset> zip(std::shared_ptr<const Dataset> first,
                                   std::shared_ptr<const Dataset> second);

/// Returns the samples for which `predicate` is true.
///
/// Loads the whole data set once, on this thread, and passes the tensors of each sample to the
/// predicate in the order of the columns. The predicate must not write to them. Only the numbers of
/// the selected samples are kept; get() loads a sample again (see cache()).
/// @throws UsageError if the predicate is empty. If the predicate throws, the UsageError names the
/// sample and has that error nested. Errors of get() pass through unchanged.
std::shared_ptr<const Dataset> filter(
    std::shared_ptr<const Dataset> dataset,
    const std::function<bool(const std::vector<at::Tensor>& sample)>& predicate);

/// Returns the named columns in the given order. get() still loads all columns of the underlying
/// data set. Throws UsageError if a name does not exist or is given twice, and for an empty list.
std::shared_ptr<const Dataset> select_columns(std::shared_ptr<const Dataset> dataset,
                                              const std::vector<std::string>& names);

/// Returns the same columns under other names.
/// @param dataset the data set.
/// @param names pairs of the present name and the new name. They apply at the same time, so two
/// names can be exchanged.
/// @throws UsageError if a present name does not exist or is given twice, or if a name would exist
/// twice.
std::shared_ptr<const Dataset> rename_columns(
    std::shared_ptr<const Dataset> dataset,
    const std::vector<std::pair<std::string, std::string>>& names);

/// Returns a data set that keeps in memory what get() returns.
///
/// Each sample is loaded once, when it is first requested, even if several threads request it at
/// the same time. A sample that failed is tried again at the next request. All callers share the
/// same tensors and must not write to them; a data loader gives the program's functions copies.
/// After one epoch in random order, the cache holds the whole data set. A data set that is stored
/// in memory already is returned as it is.
std::shared_ptr<const Dataset> cache(std::shared_ptr<const Dataset> dataset);

}  // namespace trireme::data
