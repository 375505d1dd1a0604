// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/stream.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/collator.h>
#include <trireme/data/detail/pass.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::data::detail {
namespace {

// The part of both kinds that handles finished batches, in order.
class Stream : public BatchStream {
 public:
  std::optional<Batch> next() final {
    if (is_over_) return std::nullopt;
    // Stays true if anything below throws, so a stream that failed has ended.
    is_over_ = true;
    try {
      std::optional<CollatedBatch> made = take();
      if (!made) return std::nullopt;
      record(*made);
      Batch batch = std::move(made->batch);
      if (spec_->device) {
        for (at::Tensor& column : batch.columns) {
          column = column.to(*spec_->device, /*non_blocking=*/true);
        }
      }
      ++state_.next_batch;
      is_over_ = false;
      return batch;
    } catch (...) {
      end();
      throw;
    }
  }

  StreamState state() const final { return state_; }
  const std::vector<SkippedSample>& skipped() const final { return skipped_; }

 protected:
  Stream(std::shared_ptr<const LoaderSpec> spec, std::int64_t epoch, std::int64_t first_batch)
      : spec_(std::move(spec)),
        state_{.epoch = epoch, .next_batch = first_batch, .settings = spec_->settings()} {}

 private:
  // Returns the next batch, or nullopt after the last one.
  virtual std::optional<CollatedBatch> take() = 0;

  // Called after an error: no further batch is taken.
  virtual void end() {}

  void record(const CollatedBatch& made) {
    for (const auto& [sample, error] : made.failures) {
      if (std::ssize(skipped_) == *spec_->skip_limit) fail_too_many(error);
      skipped_.push_back(sample);
    }
  }

  [[noreturn]] void fail_too_many(const std::exception_ptr& error) const {
    try {
      std::rethrow_exception(error);
    } catch (const Error& failure) {
      std::throw_with_nested(DataError(
          join_message("skip_failed allows ", *spec_->skip_limit,
                       " failed samples in an epoch, and one more failed: ", failure.what()),
          "fix the data set, or allow more"));
    }
  }

  std::shared_ptr<const LoaderSpec> spec_;
  StreamState state_;
  std::vector<SkippedSample> skipped_;
  bool is_over_ = false;  // True at the end and after an error.
};

// Makes each batch on the calling thread when it is requested.
class DirectStream final : public Stream {
 public:
  DirectStream(const std::shared_ptr<const LoaderSpec>& spec, std::int64_t epoch,
               std::int64_t first_batch)
      : Stream(spec, epoch, first_batch),
        assembler_(spec),
        sampler_(make_batch_sampler(spec, epoch, first_batch)) {}

 private:
  std::optional<CollatedBatch> take() override {
    std::optional<BatchRequest> request = sampler_->next();
    if (!request) return std::nullopt;
    return assembler_.collate(std::move(*request), {});
  }

  Collator assembler_;
  std::unique_ptr<BatchSampler> sampler_;
};

// Makes batches ahead of time. Batch n uses slot n % slots. A worker takes on batch n only after
// the consumer has taken batch n - slots. So a slot never holds two batches, and batches are
// returned in order whichever worker finishes first.
class PrefetchStream final : public Stream {
 public:
  PrefetchStream(const std::shared_ptr<const LoaderSpec>& spec, std::int64_t epoch,
                 std::int64_t first_batch)
      : Stream(spec, epoch, first_batch),
        sampler_(make_batch_sampler(spec, epoch, first_batch)),
        slots_(num_slots(*spec, first_batch)),
        num_workers_(std::min(static_cast<std::size_t>(spec->workers), slots_.size())) {
    for (std::size_t i = 0; i < num_workers_; ++i) {
      // Made on this thread, so that its errors are thrown by open().
      auto assembler = std::make_unique<Collator>(spec);
      workers_.emplace_back([this, assembler = std::move(assembler)](const std::stop_token& stop) {
        work(*assembler, stop);
      });
    }
  }

  ~PrefetchStream() override { stop_workers(); }

 private:
  struct Slot {
    std::optional<CollatedBatch> made;
    std::exception_ptr error;
  };

  // Returns the number of slots: the number of prefetched batches, but at most the number of
  // batches.
  static std::size_t num_slots(const LoaderSpec& spec, std::int64_t first_batch) {
    std::int64_t slots = spec.prefetch;
    if (spec.dataset) {
      slots = std::min(slots, spec.batches_per_pass() * spec.times - first_batch);
    }
    return static_cast<std::size_t>(std::max<std::int64_t>(slots, 1));
  }

  std::optional<CollatedBatch> take() override {
    std::unique_lock lock(mutex_);
    Slot& slot = slots_[next_ % slots_.size()];
    ready_.wait(lock, [&] { return slot.made || slot.error || next_ == end_; });
    if (next_ == end_) return std::nullopt;
    Slot result = std::exchange(slot, {});
    ++next_;
    const bool is_awaited = next_ == wake_at_;
    lock.unlock();
    if (result.error) std::rethrow_exception(result.error);
    if (is_awaited) space_.notify_one();
    return std::move(result.made);
  }

  void end() override { stop_workers(); }

  // Stops the workers. Each finishes the sample that it is working on.
  void stop_workers() {
    for (std::jthread& worker : workers_) worker.request_stop();
    workers_.clear();
  }

  void work(Collator& assembler, const std::stop_token& stop) {
    for (;;) {
      // Only one worker at a time may ask the sampler, so that batch n has number n.
      std::unique_lock turn(turn_mutex_);
      if (!wait_for_space(stop)) return;
      const std::size_t number = taken_;
      Slot result;
      try {
        std::optional<BatchRequest> request = sampler_->next();
        if (!request) return end_at(number);
        ++taken_;
        turn.unlock();
        result.made = assembler.collate(std::move(*request), stop);
        if (!result.made) return;
      } catch (...) {
        result.error = std::current_exception();
      }
      // The consumer stops the stream at the first error. If the sampler itself threw (the turn is
      // still held), it must not be asked again, so the stream ends after this batch.
      if (turn.owns_lock()) end_at(number + 1);
      const std::lock_guard lock(mutex_);
      slots_[number % slots_.size()] = std::move(result);
      if (number == next_) ready_.notify_one();
    }
  }

  // Waits for a free slot. Returns false if there are no more batches or a stop was requested.
  //
  // A worker that found all slots taken sleeps until several are free, because being woken for each
  // batch costs more than a small batch. It waits for at most half of the slots that exceed the
  // number of workers, so that all workers stay busy if batches are expensive.
  bool wait_for_space(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    if (end_ || taken_ < next_ + slots_.size()) return !end_;
    wake_at_ = next_ + 1 + (slots_.size() - num_workers_) / 2;
    return space_.wait(lock, stop, [&] { return end_ || next_ >= wake_at_; }) && !end_;
  }

  void end_at(std::size_t number) {
    const std::lock_guard lock(mutex_);
    end_ = number;
    ready_.notify_one();
  }

  // Guards the sampler and `taken_`. Lock order: turn_mutex_ before mutex_.
  std::mutex turn_mutex_;
  std::unique_ptr<BatchSampler> sampler_;
  std::size_t taken_ = 0;  // The number of batches that workers have taken on.

  // Guards next_, end_, slots_ and wake_at_.
  std::mutex mutex_;
  std::condition_variable ready_;      // The batch that the consumer waits for is in its slot.
  std::condition_variable_any space_;  // The consumer has taken a batch.
  std::size_t next_ = 0;               // The number of the batch that the consumer takes next.
  std::optional<std::size_t> end_;     // The number of all batches, once it is known.
  std::vector<Slot> slots_;
  std::size_t wake_at_ = 0;  // The value of next_ at which the worker that asks for space wakes.
  const std::size_t num_workers_;

  std::vector<std::jthread> workers_;  // The last member, because the threads use all others.
};

}  // namespace

std::unique_ptr<BatchStream> open_stream(const std::shared_ptr<const LoaderSpec>& spec,
                                         std::int64_t epoch, std::int64_t first_batch) {
  if (spec->prefetch > 0) {
    return std::make_unique<PrefetchStream>(spec, epoch, first_batch);
  }
  return std::make_unique<DirectStream>(spec, epoch, first_batch);
}

}  // namespace trireme::data::detail
