// SPDX-License-Identifier: Apache-2.0
// Reads the batches of a data loader as numbers, with and without workers.
#pragma once

#include <trireme/data/data_loader.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace trireme::data::testing {

/// The numbers of one column.
using Numbers = std::vector<std::int64_t>;

/// Returns a data set whose column `x` is i in sample i.
inline std::shared_ptr<const Dataset> count_to(std::int64_t size) {
  return tensors({{"x", at::arange(size)}});
}

/// Returns the elements of a tensor.
inline Numbers numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

/// Base of tests that run with and without workers; GetParam() is the number of workers.
class WithWorkers : public ::testing::TestWithParam<int> {
 protected:
  static DataLoader over(DataLoader loader) {
    if (GetParam() > 0) loader.prefetch(3, GetParam());
    return loader;
  }
  static DataLoader over(std::shared_ptr<const Dataset> dataset) {
    return over(DataLoader(std::move(dataset)));
  }
};

/// The numbers of workers to test: none (each batch is made on request), one and several.
inline auto numbers_of_workers() { return ::testing::Values(0, 1, 3); }

/// Returns column `x` of every remaining batch.
inline std::vector<Numbers> batches_of(BatchStream& stream) {
  std::vector<Numbers> batches;
  while (const auto batch = stream.next()) batches.push_back(numbers_of((*batch)["x"]));
  return batches;
}

/// Returns column `x` of every batch of an epoch.
inline std::vector<Numbers> batches_of(const DataLoader& loader, std::int64_t epoch = 0,
                                       std::int64_t first_batch = 0) {
  return batches_of(*loader.open(epoch, first_batch));
}

/// Returns column `x` of all rows of an epoch.
inline Numbers rows_of(const DataLoader& loader, std::int64_t epoch = 0) {
  Numbers rows;
  for (const Numbers& batch : batches_of(loader, epoch))
    rows.insert(rows.end(), batch.begin(), batch.end());
  return rows;
}

/// Returns the remaining batches.
inline std::vector<Batch> all_of(BatchStream& stream) {
  std::vector<Batch> batches;
  while (auto batch = stream.next()) batches.push_back(std::move(*batch));
  return batches;
}

/// Returns true if names, columns and padded rows are equal.
inline bool is_same(const Batch& a, const Batch& b) {
  if (a.names != b.names || a.padded_rows != b.padded_rows) return false;
  for (std::size_t i = 0; i < a.columns.size(); ++i) {
    if (a.columns[i].scalar_type() != b.columns[i].scalar_type()) return false;
    if (!at::equal(a.columns[i], b.columns[i])) return false;
  }
  return true;
}

/// Expects the same batches for every number of workers, and after resuming at every batch.
inline void expect_same_for_workers_and_resumed(const DataLoader& loader, std::int64_t epoch) {
  const std::vector<Batch> all = all_of(*loader.open(epoch));
  ASSERT_EQ(std::ssize(all), loader.batches());
  std::int64_t rows = 0;
  for (const Batch& batch : all) rows += batch.valid_rows();
  EXPECT_EQ(rows, loader.samples());
  for (const int workers : {0, 1, 3}) {
    DataLoader other = loader;
    if (workers > 0) other.prefetch(4, workers);
    const auto stream = other.open(epoch);
    for (std::size_t first = 0; first <= all.size(); ++first) {
      const StreamState state = StreamState::from_text(stream->state().to_text());
      const std::vector<Batch> rest = all_of(*loader.open(state));
      ASSERT_EQ(rest.size(), all.size() - first) << workers << " workers";
      for (std::size_t i = 0; i < rest.size(); ++i) {
        EXPECT_TRUE(is_same(rest[i], all[first + i])) << "batch " << first + i;
      }
      const auto batch = stream->next();
      ASSERT_EQ(batch.has_value(), first < all.size());
      if (batch) {
        EXPECT_TRUE(is_same(*batch, all[first])) << workers << " workers, batch " << first;
      }
    }
  }
}

}  // namespace trireme::data::testing
