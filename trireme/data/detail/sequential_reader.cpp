// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/sequential_reader.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/failure.h>
#include <trireme/data/detail/sample_value.h>

#include <utility>

namespace trireme::data::detail {
namespace {

// Copies a tensor that the reader may overwrite: it reads the next sample before this one is in a
// batch. Tensors that are not valid samples are rejected later, when they are loaded.
void keep(at::Tensor& tensor) {
  const bool is_dense = tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu();
  if (is_dense && is_shared(tensor)) tensor = tensor_of(value_of(tensor));
}

}  // namespace

SequentialReader::SequentialReader(std::shared_ptr<const LoaderSpec> spec, std::int64_t pass)
    : spec_(std::move(spec)), pass_(pass) {
  try {
    reader_ = spec_->iterable->open(pass);
    if (!reader_) {
      throw UsageError("the data set has opened no reader", "return a function from open()");
    }
  } catch (...) {
    rethrow_from(join_message("pass ", pass));
  }
  if (spec_->buffer_shuffle) {
    choice_.emplace(spec_->buffer_shuffle->seed, static_cast<std::uint64_t>(pass));
  }
}

std::optional<SequentialReader::Item> SequentialReader::read() {
  if (is_at_end_) return std::nullopt;
  std::optional<std::vector<at::Tensor>> tensors;
  try {
    tensors = reader_();
  } catch (...) {
    rethrow_from(join_message("pass ", pass_, ", sample ", num_read_));
  }
  is_at_end_ = !tensors;
  const std::optional<std::int64_t> size = spec_->iterable->size();
  if (size && (is_at_end_ ? num_read_ < *size : num_read_ == *size)) {
    throw DataError(
        join_message("pass ", pass_, ": the data set has ",
                     is_at_end_ ? join_message("only ", num_read_) : "more than ",
                     is_at_end_ ? "" : std::to_string(*size), " samples, but said ", *size),
        "give the right number in IterableDataset::size(), or none");
  }
  if (!tensors) return std::nullopt;
  for (at::Tensor& tensor : *tensors) keep(tensor);
  return Item{num_read_++, std::move(*tensors)};
}

std::optional<SequentialReader::Item> SequentialReader::next_of_all() {
  std::optional<Item> item;
  if (!choice_) {
    item = read();
  } else {
    while (std::ssize(buffer_) < spec_->buffer_shuffle->samples) {
      std::optional<Item> further = read();
      if (!further) break;
      buffer_.push_back(std::move(*further));
    }
    if (!buffer_.empty()) {
      const std::size_t place = choice_->choose(buffer_.size());
      std::swap(buffer_[place], buffer_.back());
      item = std::move(buffer_.back());
      buffer_.pop_back();
      // Like buffered_order(): the next sample takes the free position; at the end the last one of
      // the buffer does.
      if (std::optional<Item> further = read()) {
        buffer_.push_back(std::move(*further));
        std::swap(buffer_[place], buffer_.back());
      }
    }
  }
  if (!item) return std::nullopt;
  if (std::ssize(first_) < spec_->shard.count) first_.push_back(*item);
  ++num_of_all_;
  return item;
}

// With kDrop, a sample counts only if all shards get one, so it waits for the last shard's sample.
std::optional<SequentialReader::Item> SequentialReader::next_own() {
  const Shard& shard = spec_->shard;
  while (std::optional<Item> item = next_of_all()) {
    const std::int64_t place = (num_of_all_ - 1) % shard.count;
    if (shard.remainder != Remainder::kDrop) {
      if (place == shard.index) return item;
      continue;
    }
    if (place == shard.index) waiting_ = std::move(item);
    if (place == shard.count - 1) return std::exchange(waiting_, std::nullopt);
  }
  return last_own();
}

// With kWrap, some shards need one more sample than they have read: they reuse the first samples of
// the pass.
std::optional<SequentialReader::Item> SequentialReader::last_own() {
  const Shard& shard = spec_->shard;
  const std::int64_t rest = num_of_all_ % shard.count;
  if (std::exchange(has_ended_, true) || shard.remainder != Remainder::kWrap || rest == 0 ||
      shard.index < rest) {
    return std::nullopt;
  }
  return first_[static_cast<std::size_t>(shard.index - rest) % first_.size()];
}

std::optional<BatchRequest> SequentialReader::next() {
  BatchRequest request;
  request.pass = static_cast<std::uint64_t>(pass_);
  request.number = num_batches_++;
  while (std::ssize(request.rows.samples) < spec_->rows) {
    std::optional<Item> item = next_own();
    if (!item) break;
    if (spec_->last == LastBatch::kPad && std::ssize(first_own_) < spec_->rows) {
      first_own_.push_back(*item);
    }
    ++num_own_;
    request.rows.samples.push_back(item->number);
    request.loaded.push_back(std::move(item->tensors));
  }
  if (std::ssize(request.rows.samples) == spec_->rows) return request;
  if (spec_->last == LastBatch::kPad) fill_up(request);
  if (request.rows.samples.empty() || spec_->last == LastBatch::kDrop) return std::nullopt;
  return request;
}

// Pads the last batch, and adds a batch of padding only if other shards have one more batch.
void SequentialReader::fill_up(BatchRequest& request) {
  const std::int64_t rows = spec_->rows;
  const std::int64_t batches = (largest_shard(num_of_all_, spec_->shard) + rows - 1) / rows;
  if (request.number >= batches) return;
  const auto valid = static_cast<std::int64_t>(request.rows.samples.size());
  request.rows.padded = rows - valid;
  for (std::int64_t i = valid; i < rows; ++i) {
    const Item& item =
        num_own_ == 0
            ? first_[static_cast<std::size_t>(spec_->shard.index) % first_.size()]
            : first_own_[static_cast<std::size_t>((request.number * rows + i) % num_own_)];
    request.rows.samples.push_back(item.number);
    request.loaded.push_back(item.tensors);
  }
}

SequentialBatchSampler::SequentialBatchSampler(std::shared_ptr<const LoaderSpec> spec,
                                               std::int64_t epoch, std::int64_t first_batch)
    : spec_(std::move(spec)),
      next_pass_(epoch * spec_->times),
      end_pass_((epoch + 1) * spec_->times),
      to_skip_(first_batch) {}

std::optional<BatchRequest> SequentialBatchSampler::next() {
  for (;;) {
    if (!reading_) {
      if (next_pass_ == end_pass_) return std::nullopt;
      reading_.emplace(spec_, next_pass_++);
    }
    std::optional<BatchRequest> request = reading_->next();
    if (!request) {
      reading_.reset();
    } else if (to_skip_ == 0) {
      return request;
    } else {
      --to_skip_;
    }
  }
}

}  // namespace trireme::data::detail
