// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/assembler.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/checks.h>
#include <trireme/data/detail/failure.h>
#include <trireme/data/detail/ragged.h>
#include <trireme/data/transforms/elements.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

namespace trireme::data::detail {
namespace {

// Samples of one batch that do not go together. None of them is at fault alone, so none is skipped.
class Misfit : public UsageError {
 public:
  using UsageError::UsageError;
};

// Makes a value last while other samples are loaded: a function may use its memory again.
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

Assembler::Assembler(std::shared_ptr<const Recipe> recipe)
    : recipe_(std::move(recipe)), columns_(recipe_->stages.back().columns.size()) {
  if (recipe_->dataset) {
    for (const at::Tensor& column : recipe_->dataset->stored()) {
      stored_.push_back({column.scalar_type(), at::DimVector(column.sizes().slice(1))});
    }
  }
  for (const PaddedColumn& padded : recipe_->padded) {
    columns_[column_index(recipe_->stages.back().columns, padded.column)].padding = &padded.padding;
  }
}

std::optional<Assembled> Assembler::assemble(Ticket ticket, const std::stop_token& stop) {
  const at::NoGradGuard no_grad;
  begin_batch(std::move(ticket));
  try {
    return make(stop);
  } catch (const Error&) {
    throw;
  } catch (...) {
    // Such as no memory for so many rows.
    rethrow_from(join_message("batch ", ticket_.number, " of pass ", ticket_.pass));
  }
}

std::optional<Assembled> Assembler::make(const std::stop_token& stop) {
  Assembled made;
  for (std::size_t row = 0; row < ticket_.rows.samples.size(); ++row) {
    if (stop.stop_requested()) return std::nullopt;
    add_or_replace(row, made);
    if (recipe_->skip_limit && std::ssize(made.failures) > *recipe_->skip_limit) return made;
  }
  made.batch = finish();
  for (const BatchStep& step : recipe_->batch_steps) apply_to_batch(step, made.batch);
  if (recipe_->device && recipe_->device->is_cuda()) {
    for (at::Tensor& column : made.batch.columns) column = column.pin_memory();
  }
  return made;
}

void Assembler::begin_batch(Ticket ticket) {
  ticket_ = std::move(ticket);
  loaded_ = ticket_.rows.samples;
  begin_columns();
}

void Assembler::begin_columns() {
  for (Column& column : columns_) {
    column.tensor.reset();
    column.values.clear();
    if (column.padding != nullptr) column.values.resize(ticket_.rows.samples.size());
  }
}

void Assembler::add_or_replace(std::size_t row, Assembled& made) {
  if (!recipe_->skip_limit) return add(row, row, ticket_.rows.samples[row]);
  std::string message;
  for (std::int64_t attempt = 0;; ++attempt) {
    const std::optional<std::int64_t> sample =
        attempt - 1 <= *recipe_->skip_limit
            ? ticket_.replacement(static_cast<std::int64_t>(row), attempt)
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
      // What is not in the batch does not say what form the others must have.
      if (row == 0) begin_columns();
      if (attempt > 0) continue;
      message = error.what();
      if (static_cast<std::int64_t>(row) < std::ssize(ticket_.rows.samples) - ticket_.rows.padded) {
        made.failures.push_back({{*sample, message}, std::current_exception()});
      }
    }
  }
}

// `from` is the row that the sample was meant for, where it was loaded before.
void Assembler::add(std::size_t row, std::size_t from, std::int64_t sample) {
  if (row + 1 < loaded_.size()) fetch_ahead(loaded_[row + 1]);
  load(from, sample);
  for (const Stage& stage : recipe_->stages) {
    for (std::size_t column = 0; column < stage.columns.size(); ++column) {
      run_steps(stage, column, row, sample);
      if (!stage.join) put(column, row, sample);
    }
    if (stage.join) apply_join(stage, sample);
  }
}

// A shuffled sample is in no cache: it comes while the one before it is worked on. What is beyond
// its beginning the processor foresees.
void Assembler::fetch_ahead(std::int64_t sample) const {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kBeginning = 1024;
  for (std::size_t column = 0; column < stored_.size(); ++column) {
    const std::size_t bytes = stored_[column].bytes();
    const auto* data =
        static_cast<const std::byte*>(recipe_->dataset->stored()[column].const_data_ptr()) +
        static_cast<std::size_t>(sample) * bytes;
    for (std::size_t at = 0; at < std::min(bytes, kBeginning); at += kLine)
      __builtin_prefetch(data + at);
  }
}

void Assembler::load(std::size_t from, std::int64_t sample) {
  values_.clear();
  if (!stored_.empty()) {
    const std::vector<at::Tensor>& stored = recipe_->dataset->stored();
    for (std::size_t column = 0; column < stored.size(); ++column) {
      const auto* data = static_cast<const std::byte*>(stored[column].const_data_ptr());
      values_.push_back(
          {stored_[column], data + static_cast<std::size_t>(sample) * stored_[column].bytes(), {}});
    }
    return;
  }
  try {
    std::vector<at::Tensor> tensors = recipe_->dataset
                                          ? recipe_->dataset->get(sample)
                                          : ticket_.loaded[from % ticket_.loaded.size()];
    const std::vector<std::string>& columns = recipe_->source_columns();
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

void Assembler::run_steps(const Stage& stage, std::size_t column, std::size_t row,
                          std::int64_t sample) {
  const std::vector<Step>& steps = stage.steps[column];
  Column* const into =
      stage.join || columns_[column].padding != nullptr ? nullptr : &columns_[column];
  pointwise_.clear();
  for (std::size_t place = 0; place < steps.size(); ++place) {
    const Step& step = steps[place];
    const Step* const next = place + 1 < steps.size() ? &steps[place + 1] : nullptr;
    try {
      apply(step, next, into, row, sample, values_[column]);
    } catch (...) {
      rethrow_from(join_message("column '", stage.columns[column], "', ",
                                place_of(step.number, step.transform.name()), ", sample ", sample));
    }
  }
  if (into == nullptr) keep(values_[column]);
}

// `into` is the column of the batch that the last step may write to; without one its result has to
// outlive the scratch memory.
void Assembler::apply(const Step& step, const Step* next, Column* into, std::size_t row,
                      std::int64_t sample, Value& value) {
  Random random(recipe_->seed, ticket_.pass, static_cast<std::uint64_t>(sample), step.number);
  const Operation* const operation = step.transform.operation();
  if (operation == nullptr) {
    value = value_of(step.transform.function()(tensor_of(value), random));
    return;
  }
  Form form = operation->result(value.form);
  const std::size_t bytes = form.bytes();
  if (const Pointwise* const pointwise = operation->pointwise()) {
    pointwise_.push_back({pointwise, value.form.dtype});
    // The next one is to find the results in the cache: all run with the last of them.
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
    value.form.dtype = pointwise_.front().from;
    run_pointwise(pointwise_, value.form, form.dtype, value.data, output);
    pointwise_.clear();
  }
  value = {std::move(form), output, std::move(owner)};
}

void Assembler::put(std::size_t number, std::size_t row, std::int64_t sample) {
  Column& column = columns_[number];
  Value& value = values_[number];
  if (column.padding != nullptr) {
    column.values[row] = std::move(value);
    return;
  }
  if (!fits(column, sample, value.form)) {
    throw Misfit(join_message("column '", recipe_->names[number], "': sample ", sample, " is ",
                              describe(value.form), ", but sample ", column.first_sample,
                              " of the same batch is ", describe(column.form)),
                 "bring all samples to one shape and dtype, by resize or type_cast for example, or "
                 "pad them to one length (Pipeline::pad)");
  }
  std::byte* const place = column.rows + row * value.form.bytes();
  if (value.data != place) copy_sample(value.form, value.data, place);
}

void Assembler::apply_join(const Stage& stage, std::int64_t sample) {
  const Join& join = *stage.join;
  std::vector<Value> results;
  try {
    std::vector<at::Tensor> inputs;
    for (const std::size_t input : join.inputs) inputs.push_back(tensor_of(values_[input]));
    Random random(recipe_->seed, ticket_.pass, static_cast<std::uint64_t>(sample), join.number);
    std::vector<at::Tensor> tensors = join.transform.function()(std::move(inputs), random);
    if (tensors.size() != join.results.size()) {
      throw UsageError(join_message("the function returned ", tensors.size(), " tensors, expected ",
                                    join.results.size(), ": ", quoted(join.results)),
                       "return one tensor for each resulting column");
    }
    for (at::Tensor& tensor : tensors) results.push_back(value_of(std::move(tensor)));
  } catch (...) {
    std::vector<std::string> names;
    for (const std::size_t input : join.inputs) names.push_back(stage.columns[input]);
    rethrow_from(join_message("columns ", quoted(names), ", ",
                              place_of(join.number, join.transform.name()), ", sample ", sample));
  }
  std::vector<Value> next;
  for (const auto& [is_result, place] : join.sources) {
    next.push_back(std::move(is_result ? results[place] : values_[place]));
  }
  values_ = std::move(next);
}

// Whether a sample of this form goes into the batch's column. The first sample makes the column.
bool Assembler::fits(Column& column, std::int64_t sample, const Form& form) {
  if (!column.tensor.defined()) {
    at::DimVector sizes{std::ssize(ticket_.rows.samples)};
    sizes.append(form.sizes.begin(), form.sizes.end());
    column.tensor = memory_.empty(sizes, form.dtype);
    column.rows = static_cast<std::byte*>(column.tensor.mutable_data_ptr());
    column.form = form;
    column.first_sample = sample;
  }
  return form == column.form;
}

Batch Assembler::finish() {
  Batch batch{recipe_->names, {}, ticket_.rows.padded};
  std::vector<at::Tensor> lengths(recipe_->padded.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    Column& column = columns_[i];
    if (column.padding == nullptr) {
      batch.columns.push_back(std::exchange(column.tensor, {}));
      continue;
    }
    PaddedRows stacked = stack_padded(recipe_->names[i], *column.padding, column.values, loaded_);
    batch.columns.push_back(std::move(stacked.rows));
    for (std::size_t j = 0; j < lengths.size(); ++j) {
      if (&recipe_->padded[j].padding == column.padding) lengths[j] = std::move(stacked.lengths);
    }
    column.values.clear();
  }
  for (std::size_t j = 0; j < lengths.size(); ++j) {
    if (!recipe_->padded[j].padding.lengths.empty()) {
      batch.columns.push_back(std::move(lengths[j]));
    }
  }
  return batch;
}

void Assembler::apply_to_batch(const BatchStep& step, Batch& batch) const {
  const std::int64_t rows = batch.rows();
  const Shard& shard = recipe_->shard;
  Random random(recipe_->seed, ticket_.pass,
                static_cast<std::uint64_t>(ticket_.number * shard.count + shard.index),
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
                       "keep the rows of the batch; Pipeline::to moves it to a device");
    }
    if (batch.padded_rows < 0 || batch.padded_rows > rows) {
      throw UsageError(join_message("the result has ", batch.padded_rows, " padded rows of ", rows),
                       "leave padded_rows as it was");
    }
  } catch (...) {
    rethrow_from(join_message("batch ", ticket_.number, " of pass ", ticket_.pass, ", ",
                              place_of(step.number, step.transform.name())));
  }
}

}  // namespace trireme::data::detail
