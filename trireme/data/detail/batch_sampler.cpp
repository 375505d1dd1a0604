// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/batch_sampler.h>

#include <trireme/data/detail/sequential_reader.h>

#include <utility>

namespace trireme::data::detail {
namespace {

// The sampler for numbered samples. Planning a pass may shuffle all sample numbers, so the plan is
// made once and shared by the batches of the pass.
class PlannedBatchSampler final : public BatchSampler {
 public:
  PlannedBatchSampler(std::shared_ptr<const LoaderSpec> spec, std::int64_t epoch,
                      std::int64_t first_batch)
      : spec_(std::move(spec)),
        batches_per_pass_(spec_->batches_per_pass()),
        epoch_(epoch),
        next_(first_batch) {}

  std::optional<BatchRequest> next() override {
    if (next_ == batches_per_pass_ * spec_->times) return std::nullopt;
    const auto number =
        static_cast<std::uint64_t>(epoch_ * spec_->times + next_ / batches_per_pass_);
    if (!plan_ || plan_->number() != number) {
      plan_ = std::make_shared<const Pass>(spec_, number);
    }
    const std::int64_t batch = next_++ % batches_per_pass_;
    return BatchRequest{number, batch, plan_->rows(batch), plan_, {}};
  }

 private:
  std::shared_ptr<const LoaderSpec> spec_;
  std::int64_t batches_per_pass_;
  std::int64_t epoch_;
  std::int64_t next_;
  std::shared_ptr<const Pass> plan_;
};

}  // namespace

std::optional<std::int64_t> BatchRequest::replacement(std::int64_t row,
                                                      std::int64_t attempt) const {
  if (plan) return plan->replacement(number, row, attempt);
  const std::int64_t count = std::ssize(rows.samples);
  if (attempt >= count) return std::nullopt;
  return rows.samples[static_cast<std::size_t>((row + attempt) % count)];
}

std::unique_ptr<BatchSampler> make_batch_sampler(const std::shared_ptr<const LoaderSpec>& spec,
                                                 std::int64_t epoch, std::int64_t first_batch) {
  if (spec->iterable) return std::make_unique<SequentialBatchSampler>(spec, epoch, first_batch);
  return std::make_unique<PlannedBatchSampler>(spec, epoch, first_batch);
}

}  // namespace trireme::data::detail
