// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/pass.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/sequential_reader.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme::data::detail {
namespace {

// The operation number of the shuffle; those of transforms begin at 1.
constexpr std::uint64_t kShuffle = 0;

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

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::uint64_t pass) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed, pass, 0, kShuffle);
  // A Fisher-Yates shuffle. std::shuffle would give different orders with different standard
  // libraries.
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  return order;
}

BufferChoice::BufferChoice(std::uint64_t seed, std::uint64_t pass)
    : random_(seed, pass, 0, kShuffle) {}

std::size_t BufferChoice::choose(std::size_t filled) {
  return static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(filled)));
}

std::vector<std::int64_t> buffered_order(std::int64_t size, std::int64_t buffer, std::uint64_t seed,
                                         std::uint64_t pass) {
  BufferChoice choice(seed, pass);
  std::vector<std::int64_t> waiting(static_cast<std::size_t>(std::min(size, buffer)));
  std::iota(waiting.begin(), waiting.end(), 0);
  std::vector<std::int64_t> order;
  order.reserve(static_cast<std::size_t>(size));
  auto next = static_cast<std::int64_t>(waiting.size());
  while (!waiting.empty()) {
    std::int64_t& chosen = waiting[choice.choose(waiting.size())];
    order.push_back(chosen);
    if (next < size) {
      chosen = next++;
    } else {
      chosen = waiting.back();
      waiting.pop_back();
    }
  }
  return order;
}

Pass::Pass(std::shared_ptr<const LoaderSpec> spec, std::uint64_t number)
    : spec_(std::move(spec)),
      number_(number),
      own_(std::max<std::int64_t>(shard_size(spec_->dataset->size(), spec_->shard), 1)),
      kept_(spec_->samples_per_pass()) {
  if (spec_->buckets) {
    plan_buckets();
  } else if (spec_->whole_shuffle || spec_->buffer_shuffle) {
    const std::vector<std::int64_t> order = order_of_all();
    samples_.resize(static_cast<std::size_t>(own_));
    for (std::int64_t i = 0; i < own_; ++i) {
      const std::int64_t place = shard_place(spec_->dataset->size(), spec_->shard, i);
      samples_[static_cast<std::size_t>(i)] = order[static_cast<std::size_t>(place)];
    }
  }
}

std::vector<std::int64_t> Pass::order_of_all() const {
  const std::int64_t size = spec_->dataset->size();
  if (spec_->whole_shuffle) return permutation(size, spec_->whole_shuffle->seed, number_);
  if (spec_->buffer_shuffle) {
    return buffered_order(size, spec_->buffer_shuffle->samples, spec_->buffer_shuffle->seed,
                          number_);
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Every shard fills the same buckets with the samples of all shards and takes its part of each full
// bucket. So in every step all shards have a batch of the same bucket, without communication.
void Pass::plan_buckets() {
  const BucketPlan& plan = *spec_->buckets;
  std::vector<std::vector<std::int64_t>> filling(plan.counts.size());
  for (const std::int64_t sample : order_of_all()) {
    const std::size_t bucket = plan.bucket_of[static_cast<std::size_t>(sample)];
    const std::int64_t batch_rows = plan.buckets.rows[bucket];
    filling[bucket].push_back(sample);
    if (std::ssize(filling[bucket]) < batch_rows * spec_->shard.count) continue;
    add_batch(filling[bucket], batch_rows);
    filling[bucket].clear();
  }
  for (std::size_t bucket = 0; bucket < filling.size(); ++bucket) {
    if (!filling[bucket].empty()) add_batch(filling[bucket], plan.buckets.rows[bucket]);
  }
  begins_.push_back(samples_.size());
}

void Pass::add_batch(const std::vector<std::int64_t>& samples, std::int64_t batch_rows) {
  const auto size = static_cast<std::int64_t>(samples.size());
  const LoaderSpec::Part part = spec_->part_of(size, batch_rows);
  if (part.rows == 0) return;
  begins_.push_back(samples_.size());
  padded_.push_back(part.rows - part.valid);
  // A shard without a sample in this batch pads with the one at its position (shard_place wraps).
  const std::int64_t own = std::max<std::int64_t>(part.valid, 1);
  for (std::int64_t i = 0; i < part.rows; ++i) {
    const std::int64_t place = shard_place(size, spec_->shard, i % own);
    samples_.push_back(samples[static_cast<std::size_t>(place)]);
  }
}

std::int64_t Pass::sample(std::int64_t i) const {
  if (!samples_.empty()) return samples_[static_cast<std::size_t>(i)];
  return shard_place(spec_->dataset->size(), spec_->shard, i);
}

Rows Pass::rows(std::int64_t batch) const {
  if (spec_->buckets) {
    const auto number = static_cast<std::size_t>(batch);
    const auto first = samples_.begin();
    return {{first + static_cast<std::ptrdiff_t>(begins_[number]),
             first + static_cast<std::ptrdiff_t>(begins_[number + 1])},
            padded_[number]};
  }
  Rows rows;
  const std::int64_t begin = batch * spec_->rows;
  const std::int64_t valid = std::clamp<std::int64_t>(kept_ - begin, 0, spec_->rows);
  const std::int64_t all = spec_->last == LastBatch::kPad ? spec_->rows : valid;
  // Padded rows start again at the first sample of the shard (i % own_).
  rows.padded = all - valid;
  for (std::int64_t i = begin; i < begin + all; ++i) rows.samples.push_back(sample(i % own_));
  return rows;
}

std::optional<std::int64_t> Pass::replacement(std::int64_t batch, std::int64_t row,
                                              std::int64_t attempt) const {
  if (spec_->buckets) {
    const std::size_t begin = begins_[static_cast<std::size_t>(batch)];
    const auto size =
        static_cast<std::int64_t>(begins_[static_cast<std::size_t>(batch) + 1] - begin);
    if (attempt >= size) return std::nullopt;
    return samples_[begin + static_cast<std::size_t>((row + attempt) % size)];
  }
  if (attempt >= own_) return std::nullopt;
  return sample((batch * spec_->rows + row + attempt) % own_);
}

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
