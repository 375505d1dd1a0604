// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/stream.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/batch_sampler.h>
#include <trireme/data/detail/collator.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::data::detail {
namespace {

// What both kinds do with a batch once it is made, in the order of the batches.
class Stream : public BatchStream {
 public:
  std::optional<Batch> next() final {
    if (is_over_) return std::nullopt;
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
  // Returns the next batch, nothing after the last.
  virtual std::optional<CollatedBatch> take() = 0;

  // Nothing is taken any more.
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
  bool is_over_ = false;  // at the end and after an error
};

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

// Batch number n goes through slot n % slots: a worker takes number n only once the consumer has
// taken n - slots, so that a slot never holds two, and the batches come out in order whichever
// worker is first.
class PrefetchStream final : public Stream {
 public:
  PrefetchStream(const std::shared_ptr<const LoaderSpec>& spec, std::int64_t epoch,
                 std::int64_t first_batch)
      : Stream(spec, epoch, first_batch),
        sampler_(make_batch_sampler(spec, epoch, first_batch)),
        slots_(num_slots(*spec, first_batch)) {
    const std::size_t num_workers =
        std::min(static_cast<std::size_t>(spec->workers), slots_.size());
    for (std::size_t i = 0; i < num_workers; ++i) {
      // Made here, so that what it throws is open()'s.
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

  // No more than there are batches, where that is known.
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
    lock.unlock();
    if (result.error) std::rethrow_exception(result.error);
    space_.notify_one();
    return std::move(result.made);
  }

  void end() override { stop_workers(); }

  // Each finishes the sample it has in hand.
  void stop_workers() {
    for (std::jthread& worker : workers_) worker.request_stop();
    workers_.clear();
  }

  void work(Collator& assembler, const std::stop_token& stop) {
    for (;;) {
      // One worker at a time: numbers and batches stay together.
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
      // The consumer ends all where it meets an error, and a cursor that threw is not asked again.
      if (turn.owns_lock()) end_at(number + 1);
      const std::lock_guard lock(mutex_);
      slots_[number % slots_.size()] = std::move(result);
      if (number == next_) ready_.notify_one();
    }
  }

  // Returns whether there is another batch to be made.
  bool wait_for_space(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    return space_.wait(lock, stop, [&] { return end_ || taken_ < next_ + slots_.size(); }) && !end_;
  }

  void end_at(std::size_t number) {
    const std::lock_guard lock(mutex_);
    end_ = number;
    ready_.notify_one();
  }

  std::mutex turn_mutex_;  // guards the two below; taken before mutex_
  std::unique_ptr<BatchSampler> sampler_;
  std::size_t taken_ = 0;  // batches that workers have taken on

  std::mutex mutex_;                   // guards the three below
  std::condition_variable ready_;      // the batch that the consumer waits for is in its slot
  std::condition_variable_any space_;  // the consumer took a batch
  std::size_t next_ = 0;               // batch that the consumer takes next
  std::optional<std::size_t> end_;     // batches of the whole stream, once that is known
  std::vector<Slot> slots_;

  std::vector<std::jthread> workers_;  // last: they use all above
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
