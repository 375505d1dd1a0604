// SPDX-License-Identifier: Apache-2.0
// Loads and transforms the samples of a batch and writes each directly into its row. The memory of
// batches is reused: a batch of images has megabytes, and fresh memory would come from the system
// page by page, which takes longer than filling it.
#pragma once

#include <trireme/data/detail/loader_spec.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/detail/pass.h>
#include <trireme/data/detail/pointwise_transforms.h>
#include <trireme/data/detail/sample_value.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

namespace trireme::data::detail {

/// Allocates tensors whose memory is reused once the last tensor that shares it is destroyed, on
/// any thread. Keeps a few free blocks until this object and all its tensors are gone. Not
/// thread-safe itself.
class BatchMemory {
 public:
  BatchMemory();

  /// Returns an uninitialized CPU tensor, like at::empty. resize_() cannot enlarge a large one.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);

 private:
  class Pool;
  std::shared_ptr<Pool> pool_;
};

/// A batch, and the samples that were replaced in it.
struct CollatedBatch {
  /// A sample that failed and was replaced.
  struct Failure {
    /// The sample and its error message.
    SkippedSample sample;
    /// The error itself.
    std::exception_ptr error;
  };

  /// The batch. It has no columns if more samples failed than are allowed.
  Batch batch;
  /// The failed samples, in the order of the rows.
  std::vector<Failure> failures;
};

/// Makes batches. Each thread needs its own collator because it keeps memory for intermediate
/// results. Not thread-safe.
class Collator {
 public:
  /// Makes a collator for the data loader that `spec` describes.
  explicit Collator(std::shared_ptr<const LoaderSpec> spec);

  /// Returns the batch, or nullopt if `stop` was requested in the meantime. Throws like
  /// BatchStream::next().
  std::optional<CollatedBatch> collate(BatchRequest request, const std::stop_token& stop);

 private:
  // A column of the batch that is being made.
  struct Column {
    /// How the column is padded, or null. Values of a padded column wait in `values` for all rows.
    const Padding* padding = nullptr;
    /// The form of the first sample in the column; its number is `first_sample`.
    Form form;
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
  // The form of a row of each stored column (Dataset::stored).
  std::vector<Form> stored_;
  // Scratch memory: steps read from one buffer and write to the other.
  std::array<std::vector<std::byte>, 2> scratch_;
  std::size_t next_scratch_ = 0;
  // Pending pointwise steps of the current column, which run together.
  std::vector<PointwiseStep> pointwise_;
  BatchMemory memory_;

  BatchRequest request_;
  std::vector<Column> columns_;
  // The sample of each row, or its replacement.
  std::vector<std::int64_t> loaded_;
  // The values of the current sample, by column of the current block.
  std::vector<Value> values_;
};

}  // namespace trireme::data::detail
