// SPDX-License-Identifier: Apache-2.0
// From a data set to batches. A data loader is a description; opening it gives the batches of one
// epoch.
#pragma once

#include <trireme/data/batch.h>
#include <trireme/data/batch_transform.h>
#include <trireme/data/buckets.h>
#include <trireme/data/dataset.h>
#include <trireme/data/iterable.h>
#include <trireme/data/padding.h>
#include <trireme/data/sample_transform.h>
#include <trireme/data/shard.h>
#include <trireme/data/stream_state.h>
#include <trireme/data/transform.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

namespace detail {
struct LoaderSpec;
}

/// A sample that another one stands for, because it could not be loaded or transformed.
struct SkippedSample {
  std::int64_t sample = 0;  ///< its number in the data set
  std::string message;      ///< of the error: column, operation, sample and cause
};

/// The batches of one epoch in order. Not thread-safe.
class BatchStream {
 public:
  virtual ~BatchStream() = default;

  /// Returns the next batch, nothing after the last; blocks until it is ready. Where a sample
  /// cannot be loaded or transformed, or a batch not be made, it throws, on this thread and at the
  /// batch that has the sample: UsageError or DataError that names column, operation and sample,
  /// with the original nested (std::rethrow_if_nested). The stream is over then. Failed samples are
  /// skipped where DataLoader::skip_failed says so.
  virtual std::optional<Batch> next() = 0;

  /// Returns where the stream stands: a data loader of the same settings opened with it goes on
  /// with what next() has not returned yet, however much was prefetched. After the last batch that
  /// is an empty rest of the epoch.
  virtual StreamState state() const = 0;

  /// Returns the samples that were skipped in the batches so far, in the order of the rows.
  virtual const std::vector<SkippedSample>& skipped() const = 0;
};

/// What becomes of samples at the end of a pass that do not fill a batch.
enum class LastBatch {
  kKeep,  ///< The last batch may have fewer rows.
  kDrop,  ///< It is left out where it has fewer rows.
  kPad,   ///< It is filled up with samples of this shard again, from the first on, and
         ///< Batch::padded_rows says how many. All shards have the same number of batches; one that
         ///< has fewer samples ends with a batch of which no row counts.
};

/// Describes how samples become batches. A cheap value; const methods may be called concurrently.
///
/// Each setting has its fixed place, so the order of the calls does not matter, except among
/// operations: the order of samples is shuffled, the shard takes its part, the samples are loaded,
/// mapped, put into batches and padded, and the batches mapped and moved to the device; repeat()
/// does it all again. Only the shard's own samples are loaded. Rows of a batch, shards, repetitions
/// and epochs are numbers below 2^31: UsageError for a larger one.
///
/// What comes out depends on the settings and the epoch alone, never on the number of workers, of
/// ranks or of prefetched batches: the random numbers of a map belong to (seed, epoch and
/// repetition, sample, operation), those of a batch's map to (seed, epoch and repetition, batch,
/// shard, operation).
///
///     auto train = DataLoader(mnist(folder, Split::kTrain))
///                      .shuffle(1)
///                      .shard({.index = rank, .count = world_size})
///                      .map("image", rescale(1 / 255.0))
///                      .batch(32)
///                      .prefetch(4);
///     auto stream = train.open(epoch);
///     while (auto batch = stream->next()) step((*batch)["image"], (*batch)["label"]);
class DataLoader {
 public:
  /// Throws UsageError for a data set without samples or columns, of which two columns have one
  /// name, or whose stored() is not as Dataset says.
  explicit DataLoader(std::shared_ptr<const Dataset> dataset);

  /// Of samples that can only be read one after the other. Each shard reads all and keeps its part,
  /// in the order of `shuffle_buffer`, whose buffer then holds the samples themselves. shuffle(),
  /// bucket() and contiguous shards need numbered samples: UsageError. With skip_failed() a sample
  /// of the same batch stands for one that failed; what the reader itself throws always ends the
  /// stream. What lies before the first batch of open() is read and dropped. A pass without samples
  /// has no batches. Throws UsageError for a null data set, and one whose size is said to be 0.
  explicit DataLoader(std::shared_ptr<const IterableDataset> dataset);

  /// Shuffles all samples anew for each pass. All ranks must give the same seed. Default: the order
  /// of the data set.
  DataLoader& shuffle(std::uint64_t seed = 0);

  /// Shuffles within a window instead, so that samples are read nearly in their order: a buffer is
  /// filled with the first `samples` ones, and whichever leaves it at random makes room for the
  /// next one (tf.data's and MindSpore's shuffle(buffer_size)). Only numbers wait in the buffer,
  /// never the samples themselves. One as large as the data set makes every order equally likely.
  /// Throws UsageError where it is smaller than 1. The later one of shuffle() and this holds.
  DataLoader& shuffle_buffer(std::int64_t samples, std::uint64_t seed = 0);

  /// Throws UsageError unless 0 <= index < count. Default: everything.
  DataLoader& shard(Shard shard);

  /// Adds an operation on a column; those of one column are applied in the order of the calls.
  /// Throws UsageError that lists the columns where there is none of that name.
  DataLoader& map(const std::string& column, Transform transform);

  /// Adds an operation on several columns of a sample at once, after all earlier ones. The columns
  /// `from` go into the function in this order, and out of it come the columns `to`, which stand
  /// where the first of `from` stood; all other columns stay. Columns are added, dropped and
  /// renamed that way. Throws UsageError where `from` is empty, has a name twice or one that is not
  /// there, where a name would be there twice or no column would be left, and where a column goes
  /// that pad() was called for.
  DataLoader& map_columns(const std::vector<std::string>& from, const std::vector<std::string>& to,
                          SampleTransform transform);

  /// The same where the columns keep their names.
  DataLoader& map_columns(const std::vector<std::string>& columns, SampleTransform transform);

  /// Adds an operation on whole batches, after padding and all earlier ones of its kind.
  DataLoader& map_batch(BatchTransform transform);

  /// Sets the rows of a batch. All samples of a batch must have the same dtypes, and the same
  /// shapes but where pad() is called. Default: 1.
  DataLoader& batch(std::int64_t rows, LastBatch last = LastBatch::kKeep);

  /// Makes batches of samples of about the same length instead: samples go into buckets in their
  /// shuffled order, and a bucket that has as many as all shards take in one step becomes a batch
  /// of each. So in every step all ranks have a batch out of the same bucket, and with kDrop, kPad
  /// or any Remainder but kUneven the same number of batches. What is left in the buckets at the
  /// end of the pass comes last, bucket by bucket, and is shared among the shards as Shard says of
  /// all samples; `last` holds for each bucket.
  ///
  /// @param lengths of all samples of the data set, before any operation: see data::lengths.
  ///
  /// Throws UsageError where there are not as many lengths as samples, boundaries do not ascend,
  /// the rows are not one more, or one is smaller than 1. The later one of batch() and this holds.
  DataLoader& bucket(const std::vector<std::int64_t>& lengths, Buckets buckets,
                     LastBatch last = LastBatch::kKeep);

  /// Makes the samples of a column equally long by padding them; see Padding. Throws UsageError
  /// where the column is not there or padded already, the multiple or the fixed length is smaller
  /// than 1, both are given, no dimension is, or the column of lengths is there already.
  DataLoader& pad(const std::string& column, Padding padding = {});

  /// Skips up to `at_most` samples on each rank that cannot be loaded or transformed, instead of
  /// ending the stream with the first one; they are counted from where the stream was opened, to
  /// the end of the epoch. The next good sample of this shard (with bucket(), of the same batch)
  /// stands for it, so that rows and batches stay as many; BatchStream::skipped() tells which they
  /// were. Where more fail, next() throws as it does without this. Samples of one batch whose
  /// shapes differ are never skipped. Throws UsageError for a negative number. Default: 0.
  DataLoader& skip_failed(std::int64_t at_most);

  /// Passes over the samples in one epoch, each with its own shuffle and random numbers.
  /// Default: 1.
  DataLoader& repeat(std::int64_t times);

  /// Prepares up to `batches` batches ahead on `workers` threads of its own; 0 batches (the
  /// default) prepares each when it is asked for. The built-in operations keep to their thread. A
  /// program's function that calls ATen on large samples may make ATen use OpenMP threads on top;
  /// at::set_num_threads(1), as `trireme run` sets it where there are as many ranks as cores,
  /// prevents that.
  DataLoader& prefetch(int batches, int workers = 1);

  /// Moves batches to a device. For CUDA they are made in pinned memory by the workers, and next()
  /// only queues the copy on the caller's current stream. Throws UsageError where the device is not
  /// there. Default: they stay on the CPU.
  DataLoader& to(at::Device device);

  /// Sets the seed of the random numbers of the maps. All ranks must give the same. Default: 0.
  DataLoader& seed(std::uint64_t seed);

  /// Returns the batches of one epoch on this shard, repetitions included. Throws UsageError where
  /// there would be none because the shard is smaller than a batch (or empty) and the rest is
  /// dropped, and where the data set does not say how many samples it has.
  std::int64_t batches() const;

  /// Returns the rows of all these batches together, without padded ones. Throws as batches() does.
  std::int64_t samples() const;

  /// Whether shard() was called: the part that each rank reads is chosen.
  bool is_sharded() const noexcept;

  /// Whether batch() or bucket() was called: else every row is a batch.
  bool is_batched() const noexcept;

  /// Returns the columns of the batches, before any map_batch().
  const std::vector<std::string>& columns() const;

  /// Starts the epoch, which is 0 or more, at the given batch: a run that resumes in the middle of
  /// an epoch passes the batches it has seen, which are skipped without being loaded. Workers start
  /// at once and end with the stream. The data loader may change or end before the stream does.
  /// Throws as batches() does.
  std::unique_ptr<BatchStream> open(std::int64_t epoch, std::int64_t first_batch = 0) const;

  /// Goes on where a stream stood, with the same batches whatever the number of workers. Throws
  /// UsageError that names all settings that differ where the state is not one of this data
  /// loader's.
  std::unique_ptr<BatchStream> open(const StreamState& state) const;

 private:
  template <typename Change>
  DataLoader& edit(const Change& change);
  void check_numbered(const char* what) const;

  std::shared_ptr<const detail::LoaderSpec> spec_;
};

}  // namespace trireme::data
