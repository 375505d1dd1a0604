// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/cursor.h>

#include <trireme/data/detail/reading.h>

#include <utility>

namespace trireme::data::detail {
namespace {

class PlannedCursor final : public Cursor {
 public:
  PlannedCursor(std::shared_ptr<const Recipe> recipe, std::int64_t epoch, std::int64_t first_batch)
      : recipe_(std::move(recipe)),
        batches_per_pass_(recipe_->batches_per_pass()),
        epoch_(epoch),
        next_(first_batch) {}

  std::optional<Ticket> next() override {
    if (next_ == batches_per_pass_ * recipe_->times) return std::nullopt;
    const auto number =
        static_cast<std::uint64_t>(epoch_ * recipe_->times + next_ / batches_per_pass_);
    if (!plan_ || plan_->number() != number) {
      plan_ = std::make_shared<const Pass>(recipe_, number);
    }
    const std::int64_t batch = next_++ % batches_per_pass_;
    return Ticket{number, batch, plan_->rows(batch), plan_, {}};
  }

 private:
  std::shared_ptr<const Recipe> recipe_;
  std::int64_t batches_per_pass_;
  std::int64_t epoch_;
  std::int64_t next_;
  std::shared_ptr<const Pass> plan_;
};

}  // namespace

std::optional<std::int64_t> Ticket::replacement(std::int64_t row, std::int64_t attempt) const {
  if (plan) return plan->replacement(number, row, attempt);
  const std::int64_t count = std::ssize(rows.samples);
  if (attempt >= count) return std::nullopt;
  return rows.samples[static_cast<std::size_t>((row + attempt) % count)];
}

std::unique_ptr<Cursor> make_cursor(const std::shared_ptr<const Recipe>& recipe, std::int64_t epoch,
                                    std::int64_t first_batch) {
  if (recipe->iterable) return std::make_unique<ReadingCursor>(recipe, epoch, first_batch);
  return std::make_unique<PlannedCursor>(recipe, epoch, first_batch);
}

}  // namespace trireme::data::detail
