// SPDX-License-Identifier: Apache-2.0
// Which samples are in which batch of one pass: the order of samples, before any of them is loaded.
#pragma once

#include <trireme/data/detail/loader_spec.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::data::detail {

/// The samples of one batch, one for each row.
struct Rows {
  std::vector<std::int64_t> samples;
  std::int64_t padded = 0;  // the last of them
};

/// The batches of this shard in one pass. Never changes, so that threads share it.
class Pass {
 public:
  Pass(std::shared_ptr<const LoaderSpec> spec, std::uint64_t number);

  std::uint64_t number() const { return number_; }

  Rows rows(std::int64_t batch) const;

  /// Returns the sample that stands for the one of this row where that has failed, and `attempt` -
  /// 1 others after it: the next ones in the order of this shard, around its end, or of the same
  /// batch where there are buckets. Nothing once it has come to the row's own sample again.
  std::optional<std::int64_t> replacement(std::int64_t batch, std::int64_t row,
                                          std::int64_t attempt) const;

 private:
  std::vector<std::int64_t> order_of_all() const;
  void plan_buckets();
  void add_batch(const std::vector<std::int64_t>& samples, std::int64_t batch_rows);
  std::int64_t sample(std::int64_t i) const;

  std::shared_ptr<const LoaderSpec> spec_;
  std::uint64_t number_;
  std::int64_t own_;   // samples of this shard; without any, one of another to pad with
  std::int64_t kept_;  // rows that count

  // The own samples where they are shuffled; with buckets, the rows of all batches.
  std::vector<std::int64_t> samples_;
  std::vector<std::size_t> begins_;   // by batch, and the end; with buckets only
  std::vector<std::int64_t> padded_;  // by batch; with buckets only
};

}  // namespace trireme::data::detail
