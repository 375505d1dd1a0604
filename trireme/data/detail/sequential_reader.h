// SPDX-License-Identifier: Apache-2.0
// Makes batches of samples that can only be read in sequence.
#pragma once

#include <trireme/data/detail/loader_spec.h>
#include <trireme/data/detail/pass.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::data::detail {

/// Reads one pass: shuffles in the buffer, keeps this shard's part and divides it into batches.
/// Every shard reads all samples. Not thread-safe.
class SequentialReader {
 public:
  /// Opens the data set for a pass. Throws what the data set throws, with the number of the pass.
  SequentialReader(std::shared_ptr<const LoaderSpec> spec, std::int64_t pass);

  /// Returns the next batch, or nullopt after the last one. Throws errors of the reader with the
  /// number of the sample, and DataError if the number of samples is not the one that the data set
  /// declared.
  std::optional<BatchRequest> next();

 private:
  struct Item {
    std::int64_t number = 0;
    std::vector<at::Tensor> tensors;
  };

  std::optional<Item> read();
  std::optional<Item> next_of_all();
  std::optional<Item> next_own();
  std::optional<Item> last_own();
  void fill_up(BatchRequest& request);

  std::shared_ptr<const LoaderSpec> spec_;
  std::int64_t pass_;
  SampleReader reader_;
  std::int64_t num_read_ = 0;
  bool is_at_end_ = false;

  std::optional<BufferChoice> choice_;
  std::vector<Item> buffer_;

  // The samples of all shards that have left the buffer.
  std::int64_t num_of_all_ = 0;
  // The first of them, one for each shard, for Remainder::kWrap and for padding.
  std::vector<Item> first_;
  // This shard's sample, which waits until all shards have one (Remainder::kDrop).
  std::optional<Item> waiting_;
  bool has_ended_ = false;

  std::int64_t num_own_ = 0;
  // The first samples of this shard, up to the rows of a batch, for padding.
  std::vector<Item> first_own_;
  std::int64_t num_batches_ = 0;
};

/// Iterates over all passes of an epoch.
class SequentialBatchSampler final : public BatchSampler {
 public:
  /// Makes a sampler of an epoch that reads and drops the batches before `first_batch`.
  SequentialBatchSampler(std::shared_ptr<const LoaderSpec> spec, std::int64_t epoch,
                         std::int64_t first_batch);

  std::optional<BatchRequest> next() override;

 private:
  std::shared_ptr<const LoaderSpec> spec_;
  std::int64_t next_pass_;
  std::int64_t end_pass_;
  // Batches that the run has seen already: they are read, but not returned.
  std::int64_t to_skip_;
  std::optional<SequentialReader> reading_;
};

}  // namespace trireme::data::detail
