// SPDX-License-Identifier: Apache-2.0
// The settings of a data loader. They are immutable once a stream uses them.
#pragma once

#include <trireme/data/data_loader.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data::detail {

/// One call of DataLoader::map().
struct Step {
  Transform transform;
  /// The number of the operation, from 1, in the order of the calls.
  std::uint64_t number;
};

/// One call of DataLoader::map_columns().
struct Join {
  /// The origin of a column of the next block.
  struct Source {
    /// True if the column is a result of the function, false if it is a column of this block.
    bool is_result;
    /// The position among the results or columns.
    std::size_t place;
  };

  SampleTransform transform;
  /// The number of the operation, as in Step.
  std::uint64_t number;
  /// The columns of this block that the function takes.
  std::vector<std::size_t> inputs;
  /// The names of the columns that the function returns.
  std::vector<std::string> results;
  /// The origin of each column of the next block.
  std::vector<Source> sources;
};

/// A set of columns, the transforms of each column, and then optionally a transform of several
/// columns, which yields the columns of the next block. The last block has no join.
struct TransformBlock {
  std::vector<std::string> columns;
  /// The transforms of each column.
  std::vector<std::vector<Step>> steps;
  /// The transform of several columns at the end of the block.
  std::optional<Join> join;
};

/// One call of DataLoader::map_batch().
struct BatchStep {
  BatchTransform transform;
  /// The number of the operation, as in Step.
  std::uint64_t number;
};

/// One call of DataLoader::pad().
struct PaddedColumn {
  std::string column;  ///< The name of the column.
  Padding padding;     ///< The options.
};

/// The setting of DataLoader::shuffle().
struct WholeShuffle {
  std::uint64_t seed;  ///< The seed.
};
/// The setting of DataLoader::shuffle_buffer().
struct BufferShuffle {
  std::int64_t samples;  ///< The size of the buffer.
  std::uint64_t seed;    ///< The seed.
};

/// The settings of DataLoader::bucket(), resolved for every sample.
struct BucketPlan {
  Buckets buckets;                       ///< The boundaries and batch sizes.
  std::vector<std::uint32_t> bucket_of;  ///< The bucket of each sample.
  std::vector<std::int64_t> counts;      ///< The number of samples in each bucket.
  std::uint64_t digest;                  ///< A hash of the lengths, for StreamState.
};

/// Returns the number of samples of the largest shard, which is shard 0.
std::int64_t largest_shard(std::int64_t samples, Shard shard);

/// All settings of a data loader.
struct LoaderSpec {
  /// The data set; null for an iterable one.
  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<const IterableDataset> iterable;  ///< Set instead of `dataset`.
  /// The transforms of samples, in order.
  std::vector<TransformBlock> blocks;
  /// The transforms of batches, in order.
  std::vector<BatchStep> batch_steps;
  /// The padded columns.
  std::vector<PaddedColumn> padded;
  std::vector<std::string> names;  ///< The columns of the last block and those that pad() adds.
  /// The number of operations added so far; the next one gets the number after it.
  std::uint64_t num_steps = 0;
  std::uint64_t seed = 0;                       ///< The seed of the transforms.
  std::optional<WholeShuffle> whole_shuffle;    ///< Set by shuffle().
  std::optional<BufferShuffle> buffer_shuffle;  ///< At most one of the two shuffles is set.
  Shard shard;                                  ///< Set by shard().
  bool is_sharded = false;                      ///< True if shard() was called.
  std::int64_t rows = 1;                        ///< Set by batch().
  bool is_batched = false;                      ///< True if batch() or bucket() was called.
  LastBatch last = LastBatch::kKeep;            ///< Set by batch() or bucket().
  std::shared_ptr<const BucketPlan> buckets;    ///< Set by bucket(), instead of `rows`.
  std::int64_t times = 1;                       ///< Set by repeat().
  std::optional<std::int64_t> skip_limit;       ///< Set by skip_failed(), unless it is 0.
  std::optional<at::Device> device;             ///< Set by to(), unless it is the CPU.
  int prefetch = 0;                             ///< Set by prefetch(): batches.
  int workers = 1;                              ///< Set by prefetch(): threads.

  /// Returns the number of samples of the data set. Throws UsageError if it is not known.
  std::int64_t size() const;
  /// Returns the names of the columns of the data set.
  const std::vector<std::string>& source_columns() const;

  /// The rows of this shard in a batch that all shards make together.
  struct Part {
    std::int64_t valid;  ///< The number of rows that are not padding.
    std::int64_t rows;   ///< The number of all rows; 0 if this shard makes no batch.
  };
  /// Returns the part of this shard in `samples` samples, with at most `batch_rows` rows for each
  /// shard.
  Part part_of(std::int64_t samples, std::int64_t batch_rows) const;

  /// Returns the number of rows, without padding, in one pass. Throws like DataLoader::batches().
  std::int64_t samples_per_pass() const;
  /// Returns the number of batches in one pass. Throws like DataLoader::batches().
  std::int64_t batches_per_pass() const;

  /// Returns the settings that determine the samples, by name; see StreamState::settings.
  std::vector<std::pair<std::string, std::string>> settings() const;
};

}  // namespace trireme::data::detail
