// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/stream.h>

#include <trireme/data/detail/assembler.h>
#include <trireme/data/detail/cursor.h>

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

class DirectStream final : public BatchStream {
 public:
  DirectStream(const std::shared_ptr<const Recipe>& recipe, Cursor cursor)
      : assembler_(recipe), cursor_(std::move(cursor)) {}

  std::optional<Batch> next() override {
    if (is_over_ || cursor_.remaining() == 0) return std::nullopt;
    is_over_ = true;
    std::optional<Batch> batch = assembler_.assemble(cursor_.next(), {});
    is_over_ = false;
    return batch;
  }

 private:
  Assembler assembler_;
  Cursor cursor_;
  bool is_over_ = false;  // after an error
};

// Batch number n goes through slot n % slots: a worker takes number n only once the consumer has
// taken n - slots, so that a slot never holds two, and the batches come out in order whichever
// worker is first.
class PrefetchStream final : public BatchStream {
 public:
  PrefetchStream(std::shared_ptr<const Recipe> recipe, Cursor cursor)
      : recipe_(std::move(recipe)),
        cursor_(std::move(cursor)),
        num_batches_(static_cast<std::size_t>(cursor_.remaining())),
        slots_(std::min(static_cast<std::size_t>(recipe_->prefetch), num_batches_)) {
    const std::size_t num_workers =
        std::min(static_cast<std::size_t>(recipe_->workers), slots_.size());
    for (std::size_t i = 0; i < num_workers; ++i) {
      workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  ~PrefetchStream() override { stop(); }

  std::optional<Batch> next() override {
    std::unique_lock lock(mutex_);
    if (next_ == num_batches_) return std::nullopt;
    Slot& slot = slots_[next_ % slots_.size()];
    ready_.wait(lock, [&] { return slot.batch || slot.error; });
    Slot result = std::exchange(slot, {});
    ++next_;
    lock.unlock();
    if (result.error) {
      stop();
      next_ = num_batches_;
      std::rethrow_exception(result.error);
    }
    space_.notify_one();
    return std::move(result.batch);
  }

 private:
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  // Ends all workers; each finishes the sample it has in hand.
  void stop() {
    for (std::jthread& worker : workers_) worker.request_stop();
    workers_.clear();
  }

  void work(const std::stop_token& stop) {
    Assembler assembler(recipe_);
    std::unique_lock lock(mutex_);
    while (space_.wait(lock, stop, [&] {
      return taken_ == num_batches_ || taken_ < next_ + slots_.size();
    }) && taken_ < num_batches_) {
      const std::size_t number = taken_++;
      Slot result;
      try {
        const Ticket ticket = cursor_.next();
        lock.unlock();
        result.batch = assembler.assemble(ticket, stop);
        if (!result.batch) return;
      } catch (...) {
        result.error = std::current_exception();
      }
      if (!lock.owns_lock()) lock.lock();
      slots_[number % slots_.size()] = std::move(result);
      if (number == next_) ready_.notify_one();
    }
  }

  const std::shared_ptr<const Recipe> recipe_;

  std::mutex mutex_;                   // guards all below but workers_
  std::condition_variable ready_;      // the batch that the consumer waits for is in its slot
  std::condition_variable_any space_;  // the consumer took a batch
  Cursor cursor_;
  const std::size_t num_batches_;
  std::size_t taken_ = 0;  // batches that workers have taken on
  std::size_t next_ = 0;   // batch that the consumer takes next
  std::vector<Slot> slots_;

  std::vector<std::jthread> workers_;  // last: they use all above
};

}  // namespace

std::unique_ptr<BatchStream> open_stream(std::shared_ptr<const Recipe> recipe, std::int64_t epoch,
                                         std::int64_t first_batch) {
  Cursor cursor(recipe, epoch, first_batch);
  if (recipe->prefetch > 0 && cursor.remaining() > 0) {
    return std::make_unique<PrefetchStream>(std::move(recipe), std::move(cursor));
  }
  return std::make_unique<DirectStream>(recipe, std::move(cursor));
}

}  // namespace trireme::data::detail
