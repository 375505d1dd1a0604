// SPDX-License-Identifier: Apache-2.0
// Loads and transforms the samples of a batch, each straight into its row.
#pragma once

#include <trireme/data/detail/batch_memory.h>
#include <trireme/data/detail/batch_sampler.h>
#include <trireme/data/detail/loader_spec.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/detail/pointwise_transforms.h>
#include <trireme/data/detail/sample_value.h>

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

namespace trireme::data::detail {

/// A batch, and the samples that others stand for in it.
struct CollatedBatch {
  struct Failure {
    SkippedSample sample;
    std::exception_ptr error;
  };

  Batch batch;  // without columns where more failed than may
  std::vector<Failure> failures;
};

/// Makes batches. Keeps memory for intermediate results, so each thread has its own. Not
/// thread-safe.
class Collator {
 public:
  explicit Collator(std::shared_ptr<const LoaderSpec> spec);

  /// Returns the batch, or nothing where a stop was asked for meanwhile. Throws as
  /// BatchStream::next() does.
  std::optional<CollatedBatch> collate(BatchRequest request, const std::stop_token& stop);

 private:
  // A column of the batch in the making.
  struct Column {
    const Padding* padding = nullptr;  // the values then wait for all others
    Form form;                         // that of the first sample to come, number first_sample
    std::int64_t first_sample = 0;
    std::byte* rows = nullptr;
    at::Tensor tensor;
    std::vector<Value> values;
  };

  std::optional<CollatedBatch> make(const std::stop_token& stop);
  void begin_batch(BatchRequest request);
  void begin_columns();
  void add_or_replace(std::size_t row, CollatedBatch& made);
  void add(std::size_t row, std::size_t from, std::int64_t sample);
  void prefetch(std::int64_t sample) const;
  void load(std::size_t from, std::int64_t sample);
  void run_steps(const TransformBlock& block, std::size_t column, std::size_t row,
                 std::int64_t sample);
  void apply(const Step& step, const Step* next, Column* into, std::size_t row, std::int64_t sample,
             Value& value);
  void put(std::size_t column, std::size_t row, std::int64_t sample);
  void apply_join(const TransformBlock& block, std::int64_t sample);
  bool fits(Column& column, std::int64_t sample, const Form& form);
  Batch finish();
  void apply_to_batch(const BatchStep& step, Batch& batch) const;

  std::shared_ptr<const LoaderSpec> spec_;
  std::vector<Form> stored_;  // forms of the rows that the data set has in memory
  std::array<std::vector<std::byte>, 2> scratch_;  // steps read from one and write into the other
  std::size_t next_scratch_ = 0;
  std::vector<PointwiseStep> pointwise_;  // of the column in hand: those that wait to run together
  BatchMemory memory_;

  BatchRequest request_;
  std::vector<Column> columns_;
  std::vector<std::int64_t> loaded_;  // by row: its sample, or the one that stands for it
  std::vector<Value> values_;         // of the sample in hand, by column of the block
};

}  // namespace trireme::data::detail
