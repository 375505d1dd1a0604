// SPDX-License-Identifier: Apache-2.0
// Batches of samples that have to be read one after the other.
#pragma once

#include <trireme/data/detail/batch_sampler.h>
#include <trireme/data/detail/loader_spec.h>
#include <trireme/data/detail/shuffle_order.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::data::detail {

/// Reads one pass: shuffles in the buffer, keeps this shard's part and puts it into batches. Every
/// shard reads all samples. Not thread-safe.
class SequentialReader {
 public:
  SequentialReader(std::shared_ptr<const LoaderSpec> spec, std::int64_t pass);

  /// Returns the next batch, nothing after the last. Throws what the reader throws with the
  /// sample's number, and DataError where there are not as many samples as the data set said.
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

  std::int64_t num_of_all_ = 0;  // samples of all shards that have left the buffer
  std::vector<Item> first_;      // of them, as many as there are shards
  std::optional<Item> waiting_;  // own, until all shards have one
  bool has_ended_ = false;

  std::int64_t num_own_ = 0;
  std::vector<Item> first_own_;  // as many as a batch has rows
  std::int64_t num_batches_ = 0;
};

/// All passes of an epoch.
class SequentialBatchSampler final : public BatchSampler {
 public:
  SequentialBatchSampler(std::shared_ptr<const LoaderSpec> spec, std::int64_t epoch,
                         std::int64_t first_batch);

  std::optional<BatchRequest> next() override;

 private:
  std::shared_ptr<const LoaderSpec> spec_;
  std::int64_t next_pass_;
  std::int64_t end_pass_;
  std::int64_t to_skip_;  // batches that were seen already: they are read, but not made
  std::optional<SequentialReader> reading_;
};

}  // namespace trireme::data::detail
