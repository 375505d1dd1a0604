// SPDX-License-Identifier: Apache-2.0
// Data sets made of other data sets: some of their samples, several one after the other or side by
// side, other columns. A view copies nothing and keeps what it views alive. An error from get()
// is the viewed data set's own and has its sample number; where a data loader puts one before it,
// that is the view's. Where the samples lie in memory (Dataset::stored) and still do so row after
// row, they are read where they are: so with take, skip, zip, select_columns and rename_columns.
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

// Each of these throws UsageError where a data set is null.

/// The first `count` samples; all where there are fewer, as std::views::take does. Throws
/// UsageError where the count is negative.
std::shared_ptr<const Dataset> take(std::shared_ptr<const Dataset> dataset, std::int64_t count);

/// All samples after the first `count`; none where there are no more, as std::views::drop does.
/// Throws UsageError where the count is negative.
std::shared_ptr<const Dataset> skip(std::shared_ptr<const Dataset> dataset, std::int64_t count);

/// Sample i is sample indices[i] of the data set, any number of times each. Throws UsageError that
/// names the first index outside the data set and its place.
std::shared_ptr<const Dataset> subset(std::shared_ptr<const Dataset> dataset,
                                      std::vector<std::int64_t> indices);

/// All samples of the first data set, then all of the second and so on. Throws UsageError where
/// there is no data set, and where the columns are not the same in the same order; it names the
/// first data set and column that differ.
std::shared_ptr<const Dataset> concatenate(std::vector<std::shared_ptr<const Dataset>> datasets);

/// Sample i has the columns of sample i of `first`, then those of sample i of `second`. Throws
/// UsageError where the sizes differ or a name is in both.
std::shared_ptr<const Dataset> zip(std::shared_ptr<const Dataset> first,
                                   std::shared_ptr<const Dataset> second);

/// The samples for which `predicate` is true. It is called here, on this thread, once for each
/// sample with its tensors in the order of the columns, and only the numbers are kept: this loads
/// the whole data set once, and get() loads the samples that are left again (see cache). The
/// tensors must not be written to. Throws UsageError where there is no predicate or the predicate
/// throws, with the sample and what it threw nested; get()'s errors as they are.
std::shared_ptr<const Dataset> filter(
    std::shared_ptr<const Dataset> dataset,
    const std::function<bool(const std::vector<at::Tensor>& sample)>& predicate);

/// The named columns in the given order. get() still loads all of them where the data set has no
/// other way. Throws UsageError for a name that is not there or there twice, and for none at all.
std::shared_ptr<const Dataset> select_columns(std::shared_ptr<const Dataset> dataset,
                                              const std::vector<std::string>& names);

/// The same columns under other names: pairs of the present name and the new one, all at once, so
/// that two may be exchanged. Throws UsageError where a present name is not there or given twice,
/// and where a name would be there twice.
std::shared_ptr<const Dataset> rename_columns(
    std::shared_ptr<const Dataset> dataset,
    const std::vector<std::pair<std::string, std::string>>& names);

/// Keeps in memory what get() returns: each sample is loaded once, when it is first asked for, also
/// where several threads ask at the same time; one that failed is tried again the next time. All
/// get the same tensors, which must not be written to (a data loader gives its functions their
/// own). Samples in random order need as much memory as the whole data set after one epoch. A data
/// set that is in memory anyway is returned as it is.
std::shared_ptr<const Dataset> cache(std::shared_ptr<const Dataset> dataset);

}  // namespace trireme::data
