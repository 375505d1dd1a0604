// SPDX-License-Identifier: Apache-2.0
// The settings of a data loader, which never change once a stream uses them.
#pragma once

#include <trireme/data/data_loader.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data::detail {

/// One map() call.
struct Step {
  Transform transform;
  std::uint64_t number;  // from 1, in the order of the calls
};

/// One map_columns() call.
struct Join {
  /// Where a column of the next block comes from.
  struct Source {
    bool is_result;  // of the function; else a column of this block
    std::size_t place;
  };

  SampleTransform transform;
  std::uint64_t number;
  std::vector<std::size_t> inputs;  // columns of this block
  std::vector<std::string> results;
  std::vector<Source> sources;  // by column of the next block
};

/// Columns, what happens to each alone, and then to several together, which gives the columns of
/// the next block. The last block has no join.
struct TransformBlock {
  std::vector<std::string> columns;
  std::vector<std::vector<Step>> steps;  // by column
  std::optional<Join> join;
};

/// One map_batch() call.
struct BatchStep {
  BatchTransform transform;
  std::uint64_t number;
};

/// One pad() call.
struct PaddedColumn {
  std::string column;
  Padding padding;
};

struct WholeShuffle {
  std::uint64_t seed;
};
struct BufferShuffle {
  std::int64_t samples;
  std::uint64_t seed;
};

/// What bucket() was given, by sample.
struct BucketPlan {
  Buckets buckets;
  std::vector<std::uint32_t> bucket_of;  // by sample
  std::vector<std::int64_t> counts;      // samples by bucket
  std::uint64_t digest;                  // of the lengths
};

/// Samples of the largest shard, which is the first.
std::int64_t largest_shard(std::int64_t samples, Shard shard);

struct LoaderSpec {
  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<const IterableDataset> iterable;  // instead
  std::vector<TransformBlock> blocks;
  std::vector<BatchStep> batch_steps;
  std::vector<PaddedColumn> padded;
  std::vector<std::string> names;  // columns of the last block, and those that pad() adds
  std::uint64_t num_steps = 0;
  std::uint64_t seed = 0;
  std::optional<WholeShuffle> whole_shuffle;
  std::optional<BufferShuffle> buffer_shuffle;  // at most one of the two
  Shard shard;
  bool is_sharded = false;  // shard() was called
  std::int64_t rows = 1;
  bool is_batched = false;  // batch() or bucket() was called
  LastBatch last = LastBatch::kKeep;
  std::shared_ptr<const BucketPlan> buckets;  // instead of rows
  std::int64_t times = 1;
  std::optional<std::int64_t> skip_limit;
  std::optional<at::Device> device;
  int prefetch = 0;
  int workers = 1;

  /// Samples of the data set. Throws UsageError where that is not known.
  std::int64_t size() const;
  const std::vector<std::string>& source_columns() const;

  /// Of a batch that all shards make together of `samples` samples, at most `batch_rows` each.
  struct Part {
    std::int64_t valid;  // rows of this shard that count
    std::int64_t rows;   // all of its rows; 0 where it makes no batch
  };
  Part part_of(std::int64_t samples, std::int64_t batch_rows) const;

  /// Rows that count, and batches, in one pass. Throw UsageError as DataLoader::batches() does.
  std::int64_t samples_per_pass() const;
  std::int64_t batches_per_pass() const;

  /// What the samples depend on, by name: StreamState::settings.
  std::vector<std::pair<std::string, std::string>> settings() const;
};

}  // namespace trireme::data::detail
