// SPDX-License-Identifier: Apache-2.0
// From a data set to batches. A pipeline is a description; opening it gives the batches of one
// epoch.
#pragma once

#include <trireme/data/batch.h>
#include <trireme/data/dataset.h>
#include <trireme/data/shard.h>
#include <trireme/data/transform.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

namespace detail {
struct Recipe;
}

/// The batches of one epoch in order. Not thread-safe.
class BatchStream {
 public:
  virtual ~BatchStream() = default;

  /// Returns the next batch, nothing after the last; blocks until it is ready. Where a sample
  /// cannot be loaded or transformed it throws, on this thread and at the batch that has the
  /// sample: UsageError or DataError that names column, operation and sample, with the original
  /// nested (std::rethrow_if_nested). The stream is over then.
  virtual std::optional<Batch> next() = 0;
};

enum class LastBatch {
  kKeep,  ///< The last batch of a pass may have fewer rows.
  kDrop,  ///< It is left out where it has fewer rows.
};

/// Describes how samples become batches. A cheap value; const methods may be called concurrently.
///
/// Each setting has its fixed place, so the order of the calls does not matter, except among
/// map()s: the order of samples is shuffled, the shard takes its part, the samples are loaded,
/// mapped and put into batches; repeat() does it all again. Only the shard's own samples are
/// loaded.
///
/// What comes out depends on the settings and the epoch alone, never on the number of workers, of
/// ranks or of prefetched batches: the random numbers of a map belong to (seed, epoch and
/// repetition, sample, operation).
///
///     auto train = Pipeline(mnist(folder, Split::kTrain))
///                      .shuffle(1)
///                      .shard({.index = rank, .count = world_size})
///                      .map("image", rescale(1 / 255.0))
///                      .batch(32)
///                      .prefetch(4);
///     auto stream = train.open(epoch);
///     while (auto batch = stream->next()) step((*batch)["image"], (*batch)["label"]);
class Pipeline {
 public:
  /// Throws UsageError for a data set without samples.
  explicit Pipeline(std::shared_ptr<const Dataset> dataset);

  /// Shuffles all samples anew for each pass. All ranks must give the same seed. Default: the order
  /// of the data set.
  Pipeline& shuffle(std::uint64_t seed = 0);

  /// Throws UsageError unless 0 <= index < count. Default: everything.
  Pipeline& shard(Shard shard);

  /// Adds an operation on a column; those of one column are applied in the order of the calls.
  /// Throws UsageError that lists the columns where there is none of that name.
  Pipeline& map(const std::string& column, Transform transform);

  /// Sets the rows of a batch. All samples of a batch must have the same shapes and dtypes.
  /// Default: 1.
  Pipeline& batch(std::int64_t rows, LastBatch last = LastBatch::kKeep);

  /// Passes over the samples in one epoch, each with its own shuffle and random numbers.
  /// Default: 1.
  Pipeline& repeat(std::int64_t times);

  /// Prepares up to `batches` batches ahead on `workers` threads of its own; 0 batches (the
  /// default) prepares each when it is asked for. The built-in operations keep to their thread. A
  /// program's function that calls ATen on large samples may make ATen use OpenMP threads on top;
  /// at::set_num_threads(1), as `trireme run` sets it where there are as many ranks as cores,
  /// prevents that.
  Pipeline& prefetch(int batches, int workers = 1);

  /// Sets the seed of the random numbers of the maps. All ranks must give the same. Default: 0.
  Pipeline& seed(std::uint64_t seed);

  /// Returns the batches of one epoch on this shard, repetitions included. Throws UsageError where
  /// there would be none because the shard is smaller than a batch (or empty) and the rest is
  /// dropped.
  std::int64_t batches() const;

  /// Returns the rows of all these batches together.
  std::int64_t samples() const;

  const std::vector<std::string>& columns() const;

  /// Starts the epoch, which is 0 or more, at the given batch: a run that resumes in the middle of
  /// an epoch passes the batches it has seen, which are skipped without being loaded. Workers start
  /// at once and end with the stream. The pipeline may change or end before the stream does. Throws
  /// as batches() does.
  std::unique_ptr<BatchStream> open(std::int64_t epoch, std::int64_t first_batch = 0) const;

 private:
  template <typename Change>
  Pipeline& edit(const Change& change);

  std::shared_ptr<const detail::Recipe> recipe_;
};

}  // namespace trireme::data
