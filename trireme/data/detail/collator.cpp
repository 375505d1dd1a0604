// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/collator.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>
#include <trireme/data/detail/failure.h>
#include <trireme/data/detail/ragged.h>
#include <trireme/data/transforms/elements.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

namespace trireme::data::detail {
namespace {

// The standard allocator reuses smaller blocks itself.
constexpr std::int64_t kSmallest = std::int64_t{1} << 20;
// The maximum number of free blocks. A loop that takes batch after batch returns one block per
// batch. Blocks beyond this, which a program held for a while and releases together, are freed.
constexpr std::size_t kMostKept = 4;

// Samples of one batch whose forms differ. None of them alone is at fault, so none is skipped.
class Misfit : public UsageError {
 public:
  using UsageError::UsageError;
};

// Makes the value independent of memory that a function of the program may reuse for the next
// sample.
void keep(Value& value) {
  if (is_shared(value.owner)) value = value_of(tensor_of(value));
}

std::string place_of(std::uint64_t number, const std::string& name) {
  return join_message("operation ", number, " (", name, ")");
}

bool is_pointwise(const Step& step) {
  const Operation* const operation = step.transform.operation();
  return operation != nullptr && operation->pointwise() != nullptr;
}

}  // namespace

class BatchMemory::Pool {
 public:
  ~Pool() {
    for (const auto& [data, bytes] : pieces_) c10::free_cpu(data);
  }

  void* take(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
        if (piece->second != bytes) continue;
        void* const data = piece->first;
        pieces_.erase(piece);
        return data;
      }
    }
    return c10::alloc_cpu(bytes);
  }

  void give_back(void* data, std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      pieces_.emplace_back(data, bytes);
      if (pieces_.size() <= kMostKept) return;
      // The block that has been free for longest may have a size that is not needed any more.
      data = pieces_.front().first;
      pieces_.erase(pieces_.begin());
    }
    c10::free_cpu(data);
  }

 private:
  std::mutex mutex_;  // Guards pieces_.
  std::vector<std::pair<void*, std::size_t>> pieces_;
};

BatchMemory::BatchMemory() : pool_(std::make_shared<Pool>()) {}

at::Tensor BatchMemory::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  bool is_too_large = false;
  for (const std::int64_t size : sizes)
    is_too_large = __builtin_mul_overflow(bytes, size, &bytes) || is_too_large;
  // at::empty reports sizes that are too large.
  if (is_too_large || bytes < kSmallest) return at::empty(sizes, dtype);
  const auto size = static_cast<std::size_t>(bytes);
  void* const data = pool_->take(size);
  // The deleter holds the pool, so tensors may outlive this object.
  return at::from_blob(
      data, sizes, [pool = pool_, size](void* piece) { pool->give_back(piece, size); },
      at::TensorOptions().dtype(dtype));
}

Collator::Collator(std::shared_ptr<const LoaderSpec> spec)
    : spec_(std::move(spec)), columns_(spec_->blocks.back().columns.size()) {
  if (spec_->dataset) {
    for (const at::Tensor& column : spec_->dataset->stored()) {
      stored_.push_back({column.scalar_type(), at::DimVector(column.sizes().slice(1))});
    }
  }
  for (const PaddedColumn& padded : spec_->padded) {
    columns_[column_index(spec_->blocks.back().columns, padded.column)].padding = &padded.padding;
  }
}

std::optional<CollatedBatch> Collator::collate(BatchRequest request, const std::stop_token& stop) {
  const at::NoGradGuard no_grad;
  begin_batch(std::move(request));
  try {
    return make(stop);
  } catch (const Error&) {
    throw;
  } catch (...) {
    // An error without a place, such as too little memory for a batch.
    rethrow_from(join_message("batch ", request_.number, " of pass ", request_.pass));
  }
}

std::optional<CollatedBatch> Collator::make(const std::stop_token& stop) {
  CollatedBatch made;
  for (std::size_t row = 0; row < request_.rows.samples.size(); ++row) {
    if (stop.stop_requested()) return std::nullopt;
    add_or_replace(row, made);
    if (spec_->skip_limit && std::ssize(made.failures) > *spec_->skip_limit) return made;
  }
  made.batch = finish();
  for (const BatchStep& step : spec_->batch_steps) apply_to_batch(step, made.batch);
  if (spec_->device && spec_->device->is_cuda()) {
    for (at::Tensor& column : made.batch.columns) column = column.pin_memory();
  }
  return made;
}

void Collator::begin_batch(BatchRequest request) {
  request_ = std::move(request);
  loaded_ = request_.rows.samples;
  begin_columns();
}

void Collator::begin_columns() {
  for (Column& column : columns_) {
    column.tensor.reset();
    column.values.clear();
    if (column.padding != nullptr) column.values.resize(request_.rows.samples.size());
  }
}

void Collator::add_or_replace(std::size_t row, CollatedBatch& made) {
  if (!spec_->skip_limit) return add(row, row, request_.rows.samples[row]);
  std::string message;
  for (std::int64_t attempt = 0;; ++attempt) {
    const std::optional<std::int64_t> sample =
        attempt - 1 <= *spec_->skip_limit
            ? request_.replacement(static_cast<std::int64_t>(row), attempt)
            : std::nullopt;
    if (!sample) {
      throw DataError(join_message("no sample can stand for one that failed: so did the ",
                                   attempt - 1, " after it; the first: ", message),
                      "fix the data set, or allow more with skip_failed");
    }
    try {
      loaded_[row] = *sample;
      return add(row, row + static_cast<std::size_t>(attempt), *sample);
    } catch (const Misfit&) {
      throw;
    } catch (const Error& error) {
      // The first sample determines the form of each column. A failed sample is not in the batch,
      // so its form must be forgotten.
      if (row == 0) begin_columns();
      if (attempt > 0) continue;
      message = error.what();
      if (static_cast<std::int64_t>(row) <
          std::ssize(request_.rows.samples) - request_.rows.padded) {
        made.failures.push_back({{*sample, message}, std::current_exception()});
      }
    }
  }
}

// Loads and transforms a sample and writes it to `row`. `from` is the row in which an iterable data
// set has loaded it already.
void Collator::add(std::size_t row, std::size_t from, std::int64_t sample) {
  if (row + 1 < loaded_.size()) prefetch(loaded_[row + 1]);
  load(from, sample);
  for (const TransformBlock& block : spec_->blocks) {
    for (std::size_t column = 0; column < block.columns.size(); ++column) {
      run_steps(block, column, row, sample);
      if (!block.join) put(column, row, sample);
    }
    if (block.join) apply_join(block, sample);
  }
}

// A shuffled sample is not in the cache. Its beginning is prefetched while the sample before it is
// processed; the hardware prefetcher continues from there.
void Collator::prefetch(std::int64_t sample) const {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kBeginning = 1024;
  for (std::size_t column = 0; column < stored_.size(); ++column) {
    const std::size_t bytes = stored_[column].bytes();
    const auto* data =
        static_cast<const std::byte*>(spec_->dataset->stored()[column].const_data_ptr()) +
        static_cast<std::size_t>(sample) * bytes;
    for (std::size_t at = 0; at < std::min(bytes, kBeginning); at += kLine)
      __builtin_prefetch(data + at);
  }
}

void Collator::load(std::size_t from, std::int64_t sample) {
  values_.clear();
  if (!stored_.empty()) {
    const std::vector<at::Tensor>& stored = spec_->dataset->stored();
    for (std::size_t column = 0; column < stored.size(); ++column) {
      const auto* data = static_cast<const std::byte*>(stored[column].const_data_ptr());
      values_.push_back(
          {stored_[column], data + static_cast<std::size_t>(sample) * stored_[column].bytes(), {}});
    }
    return;
  }
  try {
    std::vector<at::Tensor> tensors = spec_->dataset
                                          ? spec_->dataset->get(sample)
                                          : request_.loaded[from % request_.loaded.size()];
    const std::vector<std::string>& columns = spec_->source_columns();
    if (tensors.size() != columns.size()) {
      throw UsageError(join_message("the data set gave ", tensors.size(), " tensors, expected ",
                                    columns.size(), ": ", quoted(columns)),
                       "return one tensor for each column");
    }
    for (at::Tensor& tensor : tensors) values_.push_back(value_of(std::move(tensor)));
  } catch (...) {
    rethrow_from(join_message("sample ", sample));
  }
}

void Collator::run_steps(const TransformBlock& block, std::size_t column, std::size_t row,
                         std::int64_t sample) {
  const std::vector<Step>& steps = block.steps[column];
  Column* const into =
      block.join || columns_[column].padding != nullptr ? nullptr : &columns_[column];
  pointwise_.clear();
  for (std::size_t place = 0; place < steps.size(); ++place) {
    const Step& step = steps[place];
    const Step* const next = place + 1 < steps.size() ? &steps[place + 1] : nullptr;
    try {
      apply(step, next, into, row, sample, values_[column]);
    } catch (...) {
      rethrow_from(join_message("column '", block.columns[column], "', ",
                                place_of(step.number, step.transform.name()), ", sample ", sample));
    }
  }
  if (into == nullptr) keep(values_[column]);
}

// Applies one step to `value`. `into` is the column of the batch that the last step may write to.
// Without it, the result gets a tensor of its own because the scratch memory is reused.
void Collator::apply(const Step& step, const Step* next, Column* into, std::size_t row,
                     std::int64_t sample, Value& value) {
  Random random(spec_->seed, request_.pass, static_cast<std::uint64_t>(sample), step.number);
  const Operation* const operation = step.transform.operation();
  if (operation == nullptr) {
    value = value_of(step.transform.function()(tensor_of(value), random));
    return;
  }
  Form form = operation->result(value.form);
  const std::size_t bytes = form.bytes();
  if (const Pointwise* const pointwise = operation->pointwise()) {
    pointwise_.push_back({pointwise, value.form.dtype});
    // The step is deferred. Consecutive pointwise steps run together with the last of them, block
    // by block, so that each finds its input in the cache.
    if (next != nullptr && is_pointwise(*next)) {
      value.form = std::move(form);
      return;
    }
  }
  const bool is_last = next == nullptr;
  std::byte* output = nullptr;
  at::Tensor owner;
  if (is_last && into == nullptr) {
    owner = at::empty(form.sizes, form.dtype);
    output = static_cast<std::byte*>(owner.mutable_data_ptr());
  } else if (is_last && fits(*into, sample, form)) {
    output = into->rows + row * bytes;
  } else {
    std::vector<std::byte>& scratch = scratch_[next_scratch_];
    next_scratch_ = 1 - next_scratch_;
    if (scratch.size() < bytes) scratch.resize(bytes);
    output = scratch.data();
  }
  if (pointwise_.empty()) {
    operation->run(value.form, value.data, output, random);
  } else {
    // While steps were deferred, `value.form` already had the dtype of their results. The data
    // still has the dtype of the first step's input.
    value.form.dtype = pointwise_.front().from;
    run_pointwise(pointwise_, value.form, form.dtype, value.data, output);
    pointwise_.clear();
  }
  value = {std::move(form), output, std::move(owner)};
}

void Collator::put(std::size_t number, std::size_t row, std::int64_t sample) {
  Column& column = columns_[number];
  Value& value = values_[number];
  if (column.padding != nullptr) {
    column.values[row] = std::move(value);
    return;
  }
  if (!fits(column, sample, value.form)) {
    throw Misfit(join_message("column '", spec_->names[number], "': sample ", sample, " is ",
                              describe(value.form), ", but sample ", column.first_sample,
                              " of the same batch is ", describe(column.form)),
                 "bring all samples to one shape and dtype, by resize or type_cast for example, or "
                 "pad them to one length (DataLoader::pad)");
  }
  std::byte* const place = column.rows + row * value.form.bytes();
  if (value.data != place) copy_sample(value.form, value.data, place);
}

void Collator::apply_join(const TransformBlock& block, std::int64_t sample) {
  const Join& join = *block.join;
  std::vector<Value> results;
  try {
    std::vector<at::Tensor> inputs;
    for (const std::size_t input : join.inputs) inputs.push_back(tensor_of(values_[input]));
    Random random(spec_->seed, request_.pass, static_cast<std::uint64_t>(sample), join.number);
    std::vector<at::Tensor> tensors = join.transform.function()(std::move(inputs), random);
    if (tensors.size() != join.results.size()) {
      throw UsageError(join_message("the function returned ", tensors.size(), " tensors, expected ",
                                    join.results.size(), ": ", quoted(join.results)),
                       "return one tensor for each resulting column");
    }
    for (at::Tensor& tensor : tensors) results.push_back(value_of(std::move(tensor)));
  } catch (...) {
    std::vector<std::string> names;
    for (const std::size_t input : join.inputs) names.push_back(block.columns[input]);
    rethrow_from(join_message("columns ", quoted(names), ", ",
                              place_of(join.number, join.transform.name()), ", sample ", sample));
  }
  std::vector<Value> next;
  for (const auto& [is_result, place] : join.sources) {
    next.push_back(std::move(is_result ? results[place] : values_[place]));
  }
  values_ = std::move(next);
}

// Returns true if a sample of this form fits the column of the batch. The first sample creates the
// column.
bool Collator::fits(Column& column, std::int64_t sample, const Form& form) {
  if (!column.tensor.defined()) {
    at::DimVector sizes{std::ssize(request_.rows.samples)};
    sizes.append(form.sizes.begin(), form.sizes.end());
    column.tensor = memory_.empty(sizes, form.dtype);
    column.rows = static_cast<std::byte*>(column.tensor.mutable_data_ptr());
    column.form = form;
    column.first_sample = sample;
  }
  return form == column.form;
}

Batch Collator::finish() {
  Batch batch{spec_->names, {}, request_.rows.padded};
  std::vector<at::Tensor> lengths(spec_->padded.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    Column& column = columns_[i];
    if (column.padding == nullptr) {
      batch.columns.push_back(std::exchange(column.tensor, {}));
      continue;
    }
    PaddedRows stacked = stack_padded(spec_->names[i], *column.padding, column.values, loaded_);
    batch.columns.push_back(std::move(stacked.rows));
    for (std::size_t j = 0; j < lengths.size(); ++j) {
      if (&spec_->padded[j].padding == column.padding) lengths[j] = std::move(stacked.lengths);
    }
    column.values.clear();
  }
  for (std::size_t j = 0; j < lengths.size(); ++j) {
    if (!spec_->padded[j].padding.lengths.empty()) {
      batch.columns.push_back(std::move(lengths[j]));
    }
  }
  return batch;
}

void Collator::apply_to_batch(const BatchStep& step, Batch& batch) const {
  const std::int64_t rows = batch.rows();
  const Shard& shard = spec_->shard;
  // The number of the batch among all batches of all shards.
  Random random(spec_->seed, request_.pass,
                static_cast<std::uint64_t>(request_.number * shard.count + shard.index),
                step.number);
  try {
    batch = step.transform.function()(std::move(batch), random);
    if (!batch.names.empty()) check_names(batch.names);
    if (batch.names.empty() || batch.names.size() != batch.columns.size()) {
      throw UsageError(join_message("the result has ", batch.columns.size(), " columns and ",
                                    batch.names.size(), " names"),
                       "give at least one column, and each its name");
    }
    for (std::size_t i = 0; i < batch.columns.size(); ++i) {
      const at::Tensor& column = batch.columns[i];
      if (column.defined() && column.is_cpu() && column.layout() == at::kStrided &&
          column.dim() > 0 && column.size(0) == rows) {
        continue;
      }
      throw UsageError(join_message("column '", batch.names[i], "' of the result is ",
                                    column.defined() ? join_message(column.sizes()) : "undefined",
                                    ", expected a dense CPU tensor of ", rows, " rows"),
                       "keep the rows of the batch; DataLoader::to moves it to a device");
    }
    if (batch.padded_rows < 0 || batch.padded_rows > rows) {
      throw UsageError(join_message("the result has ", batch.padded_rows, " padded rows of ", rows),
                       "leave padded_rows as it was");
    }
  } catch (...) {
    rethrow_from(join_message("batch ", request_.number, " of pass ", request_.pass, ", ",
                              place_of(step.number, step.transform.name())));
  }
}

}  // namespace trireme::data::detail
