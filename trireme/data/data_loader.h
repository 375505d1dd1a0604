// SPDX-License-Identifier: Apache-2.0
// The data loader, which turns a data set into batches. A DataLoader only describes how batches are
// made; open() returns a stream of the batches of one epoch.
#pragma once

#include <trireme/data/batch.h>
#include <trireme/data/batch_transform.h>
#include <trireme/data/buckets.h>
#include <trireme/data/dataset.h>
#include <trireme/data/iterable.h>
#include <trireme/data/named_function.h>
#include <trireme/data/padding.h>
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

/// A sample that was replaced by another one because it could not be loaded or transformed.
struct SkippedSample {
  /// The number of the sample in the data set.
  std::int64_t sample = 0;
  /// The error message, with column, operation, sample and cause.
  std::string message;
};

/// The batches of one epoch in order. Not thread-safe.
class BatchStream {
 public:
  virtual ~BatchStream() = default;

  /// Returns the next batch, or nullopt after the last one. Blocks until the batch is ready.
  ///
  /// If a sample cannot be loaded or transformed, or a batch cannot be made, this call throws. The
  /// error is thrown on the calling thread, at the batch that contains the sample. It is a
  /// UsageError or DataError that names column, operation and sample, with the original error
  /// nested (std::rethrow_if_nested). After an error, next() returns nullopt.
  /// DataLoader::skip_failed() skips failed samples instead.
  virtual std::optional<Batch> next() = 0;

  /// Returns the position of the stream.
  ///
  /// A data loader with the same settings that is opened with this state continues with the next
  /// batch. Prefetched batches that next() has not returned do not count. After the last batch, the
  /// state stands for an epoch with no batches left.
  virtual StreamState state() const = 0;

  /// Returns the samples skipped in the batches returned so far, in the order of the rows.
  virtual const std::vector<SkippedSample>& skipped() const = 0;
};

/// How a pass ends if its samples do not fill the last batch.
enum class LastBatch {
  /// The last batch has fewer rows.
  kKeep,
  /// The last batch is left out if it has fewer rows.
  kDrop,
  /// The last batch is filled up with samples of this shard, starting at the first one;
  /// Batch::padded_rows tells how many. All shards have the same number of batches. A shard with
  /// fewer samples than others ends with a batch that consists of padding only.
  kPad,
};

/// Describes how samples become batches. Cheap to copy; const methods may be called concurrently.
///
/// The settings apply in a fixed order, whatever the order of the calls. Only map(), map_columns()
/// and map_batch() apply in the order of their calls.
/// - The order of the samples is shuffled, and the shard takes its part.
/// - The samples of this shard alone are loaded, mapped, collected into batches and padded.
/// - The batches are mapped and moved to the device.
/// - repeat() does all of this again.
///
/// The batches depend on the settings and the epoch only. They do not depend on the number of
/// workers or of prefetched batches. The random numbers of map() and map_columns() are determined
/// by seed, pass, sample and operation; those of map_batch() by seed, pass, batch, shard and
/// operation. A pass is one repetition of one epoch.
///
/// Rows of a batch, shards, repetitions and epochs must be below 2^31; a larger number is a
/// UsageError.
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
  /// Makes a loader over a data set with numbered samples.
  /// @throws UsageError if the data set is null or has no samples or no columns, if two columns
  /// have the same name, or if Dataset::stored() breaks its contract.
  explicit DataLoader(std::shared_ptr<const Dataset> dataset);

  /// Makes a loader over samples that can only be read in sequence.
  ///
  /// Each shard reads all samples and keeps its part. shuffle_buffer() works on the samples
  /// themselves, which wait in the buffer. The settings shuffle(), bucket() and contiguous shards
  /// need numbered samples and throw UsageError. With skip_failed(), a failed sample is replaced by
  /// one of the same batch. An error of the reader itself always ends the stream. Batches before
  /// the first one requested from open() are read and dropped. A pass without samples has no
  /// batches.
  /// @throws UsageError if the data set is null or says that its size is 0.
  explicit DataLoader(std::shared_ptr<const IterableDataset> dataset);

  /// Shuffles all samples, in a new order for each pass. All ranks must pass the same seed. The
  /// default is the order of the data set.
  DataLoader& shuffle(std::uint64_t seed = 0);

  /// Shuffles within a sliding window, so that samples are read nearly in their order.
  ///
  /// A buffer is filled with the first `samples` samples. Then a random one leaves the buffer and
  /// the next sample of the data set takes its place, as in tf.data's shuffle(buffer_size). For
  /// numbered samples the buffer holds their numbers only. A buffer as large as the data set makes
  /// every order equally likely. The last call of shuffle() or shuffle_buffer() wins.
  /// @throws UsageError if `samples` is below 1.
  DataLoader& shuffle_buffer(std::int64_t samples, std::uint64_t seed = 0);

  /// Selects the part of the samples that this rank loads. The default is all samples. Throws
  /// UsageError unless 0 <= index < count.
  DataLoader& shard(Shard shard);

  /// Adds a transform of one column of every sample. Transforms of a column apply in the order of
  /// the calls. Throws UsageError with the list of columns if the column does not exist.
  DataLoader& map(const std::string& column, Transform transform);

  /// Adds a transform of several columns of a sample at once, after all earlier transforms.
  ///
  /// The function receives the columns `from` in this order and returns the columns `to`. The new
  /// columns take the position of the first column of `from`; all other columns stay. In this way
  /// columns are added, dropped and renamed.
  /// @throws UsageError if
  /// - `from` is empty, names a column twice or names one that does not exist,
  /// - a resulting name would exist twice or no column would be left, or
  /// - a column that pad() was called for would be removed.
  DataLoader& map_columns(const std::vector<std::string>& from, const std::vector<std::string>& to,
                          SampleTransform transform);

  /// Adds a transform of several columns that keep their names.
  DataLoader& map_columns(const std::vector<std::string>& columns, SampleTransform transform);

  /// Adds a transform of whole batches, after padding and after all earlier map_batch() calls.
  DataLoader& map_batch(BatchTransform transform);

  /// Sets the number of rows of a batch; the default is 1. All samples of a batch must have the
  /// same dtypes. They must also have the same shapes, except in columns with pad(). Throws
  /// UsageError if `rows` is below 1.
  DataLoader& batch(std::int64_t rows, LastBatch last = LastBatch::kKeep);

  /// Makes batches of samples of about the same length.
  ///
  /// Samples go into buckets in their shuffled order. When a bucket holds enough samples for one
  /// batch of every shard, each shard makes one batch from it. So all ranks get batches of the same
  /// bucket in every step. All ranks also have the same number of batches, unless both
  /// LastBatch::kKeep and Remainder::kUneven are used. Samples left over at the end of a pass come
  /// last, bucket by bucket, and are divided among the shards as Shard says; `last` applies to each
  /// bucket. The last call of batch() or bucket() wins.
  ///
  /// @param lengths the length of every sample of the data set before any transform; see
  /// data::lengths.
  /// @param buckets the boundaries and the batch size of each bucket.
  /// @param last how each bucket ends.
  /// @throws UsageError if
  /// - the number of lengths is not the number of samples,
  /// - the boundaries do not ascend, or
  /// - `rows` does not have one entry more than `boundaries`, or has an entry below 1.
  DataLoader& bucket(const std::vector<std::int64_t>& lengths, Buckets buckets,
                     LastBatch last = LastBatch::kKeep);

  /// Divides the rows of batch() by a number, so that as many batches, one after the other or one
  /// of each shard, are what was one batch before. Rows at the end that do not fill a batch are
  /// left out from then on (LastBatch::kDrop). Throws UsageError without batch(), after bucket(),
  /// or if the rows do not divide by the number.
  /// @param parts 1 or more.
  DataLoader& split_batches(std::int64_t parts);

  /// Pads the samples of a column to a common length; see Padding.
  /// @throws UsageError if
  /// - the column does not exist or is padded already,
  /// - the multiple or the fixed length is below 1, or both are given,
  /// - no dimension is given, or
  /// - a column with the name of Padding::lengths exists already.
  DataLoader& pad(const std::string& column, Padding padding = {});

  /// Skips up to `at_most` samples on each rank that cannot be loaded or transformed.
  ///
  /// The default, 0, ends the stream at the first failure. Failures are counted from the opening of
  /// the stream to the end of the epoch. The next good sample of this shard (with bucket(): of the
  /// same batch) takes the place of a failed one, so the number of rows and batches stays the same.
  /// BatchStream::skipped() lists the failed samples. If more samples fail, next() throws. Samples
  /// of one batch whose shapes differ are an error that is never skipped.
  /// @throws UsageError for a negative number.
  DataLoader& skip_failed(std::int64_t at_most);

  /// Sets the number of passes over the samples in one epoch, each with its own shuffle and random
  /// numbers. The default is 1.
  DataLoader& repeat(std::int64_t times);

  /// Prepares up to `batches` batches ahead on `workers` background threads.
  ///
  /// With 0 batches, the default, each batch is made on the calling thread when next() is called.
  /// Built-in transforms use no further threads. A function of the program that calls ATen on large
  /// samples may start OpenMP threads. at::set_num_threads(1) prevents that; `trireme run` sets it
  /// if there are as many ranks as cores.
  DataLoader& prefetch(int batches, int workers = 1);

  /// Moves batches to a device; by default they stay on the CPU.
  ///
  /// For CUDA the workers make batches in pinned memory, and next() only enqueues the copy on the
  /// current stream of the caller. Throws UsageError if the device does not exist.
  DataLoader& to(at::Device device);

  /// Sets the seed of the random numbers of the transforms. All ranks must pass the same seed. The
  /// default is 0.
  DataLoader& seed(std::uint64_t seed);

  /// Returns the number of batches of this shard in one epoch, including repetitions.
  ///
  /// A shard that is empty because of Remainder::kUneven may have 0.
  /// @throws UsageError if there is no batch because the samples of the shard do not fill one and
  /// the rest is dropped. It is also thrown if an iterable data set does not know its size.
  std::int64_t batches() const;

  /// Returns the number of rows of all these batches, without padded ones. Throws like batches().
  std::int64_t samples() const;

  /// Returns the numbers in the data set of the samples of a batch, in the order of its rows and
  /// without padded ones. Loads nothing. Samples that skip_failed() replaces are listed, not their
  /// replacements. Returns none for an iterable data set, whose samples have no numbers, and for a
  /// batch after the last one.
  /// @param epoch the number of the epoch, at least 0.
  /// @param batch the number of the batch in the epoch, at least 0.
  std::vector<std::int64_t> samples_of(std::int64_t epoch, std::int64_t batch) const;

  /// Returns true if shard() was called.
  bool is_sharded() const noexcept;

  /// Returns true if batch() or bucket() was called. Otherwise every sample is a batch of its own.
  bool is_batched() const noexcept;

  /// Returns the names of the columns of the batches, before any map_batch().
  const std::vector<std::string>& columns() const;

  /// Starts an epoch and returns its batches.
  ///
  /// Workers start at once and end with the stream. The loader may be changed or destroyed while
  /// the stream is in use. Throws like batches().
  /// @param epoch the number of the epoch, at least 0.
  /// @param first_batch the first batch to return. A run that resumes within an epoch passes the
  /// number of batches it has seen; these are skipped without being loaded.
  std::unique_ptr<BatchStream> open(std::int64_t epoch, std::int64_t first_batch = 0) const;

  /// Continues where a stream stopped, with the same batches whatever the number of workers.
  /// @throws UsageError with every setting that differs if the state belongs to another data
  /// loader.
  std::unique_ptr<BatchStream> open(const StreamState& state) const;

 private:
  template <typename Change>
  DataLoader& edit(const Change& change);
  void check_numbered(const char* what) const;

  std::shared_ptr<const detail::LoaderSpec> spec_;
};

}  // namespace trireme::data
