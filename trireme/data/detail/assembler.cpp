// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/assembler.h>

#include <trireme/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <exception>
#include <string>
#include <utility>

namespace trireme::data::detail {
namespace {

constexpr std::string_view kFailedHint =
    "the cause is in the data set or in the program's own function";

// Throws what is in flight again with the place where it happened, and the original nested.
[[noreturn]] void rethrow_from(const std::string& place) {
  try {
    throw;
  } catch (const UsageError& error) {
    std::throw_with_nested(UsageError(join_message(place, ": ", error.what()), ""));
  } catch (const Error& error) {
    std::throw_with_nested(DataError(join_message(place, ": ", error.what()), ""));
  } catch (const c10::Error& error) {
    std::throw_with_nested(
        DataError(join_message(place, ": ", error.what_without_backtrace()), kFailedHint));
  } catch (const std::exception& error) {
    std::throw_with_nested(DataError(join_message(place, ": ", error.what()), kFailedHint));
  } catch (...) {
    std::throw_with_nested(DataError(
        join_message(place, ": threw something that is not a std::exception"), kFailedHint));
  }
}

// An empty sample may have no memory at all, which memcpy must not be given.
void copy(void* to, const std::byte* from, const Form& form) {
  if (form.bytes() > 0) std::memcpy(to, from, form.bytes());
}

at::Tensor tensor_of(const Form& form, const std::byte* data) {
  at::Tensor tensor = at::empty(form.sizes, form.dtype);
  copy(tensor.mutable_data_ptr(), data, form);
  return tensor;
}

}  // namespace

Assembler::Assembler(std::shared_ptr<const Recipe> recipe)
    : recipe_(std::move(recipe)),
      forms_(recipe_->steps.size()),
      rows_(recipe_->steps.size()),
      columns_(recipe_->steps.size()) {
  for (const at::Tensor& column : recipe_->dataset->stored()) {
    stored_.push_back({column.scalar_type(), at::DimVector(column.sizes().slice(1))});
  }
}

std::optional<Batch> Assembler::assemble(const Ticket& ticket, const std::stop_token& stop) {
  const at::NoGradGuard no_grad;
  const Dataset& dataset = *recipe_->dataset;
  const std::vector<at::Tensor>& stored = dataset.stored();
  columns_.assign(columns_.size(), {});
  for (std::size_t row = 0; row < ticket.samples.size(); ++row) {
    if (stop.stop_requested()) return std::nullopt;
    const std::int64_t sample = ticket.samples[row];
    if (!stored.empty()) {
      for (std::size_t column = 0; column < stored.size(); ++column) {
        const auto* data = static_cast<const std::byte*>(stored[column].const_data_ptr());
        add(column, row, ticket,
            {stored_[column],
             data + static_cast<std::size_t>(sample) * stored_[column].bytes(),
             {}});
      }
      continue;
    }
    std::vector<Value> values;
    try {
      for (at::Tensor& tensor : dataset.get(sample)) values.push_back(value_of(std::move(tensor)));
      TRIREME_CHECK_EQ(values.size(), columns_.size());
    } catch (...) {
      rethrow_from(join_message("sample ", sample));
    }
    for (std::size_t column = 0; column < values.size(); ++column)
      add(column, row, ticket, std::move(values[column]));
  }
  return Batch{dataset.columns(),
               std::exchange(columns_, std::vector<at::Tensor>(columns_.size()))};
}

void Assembler::add(std::size_t column, std::size_t row, const Ticket& ticket, Value value) {
  const std::vector<Step>& steps = recipe_->steps[column];
  for (std::size_t step = 0; step < steps.size(); ++step) {
    try {
      apply(column, row, ticket, step, value);
    } catch (...) {
      rethrow_from(join_message("column '", recipe_->dataset->columns()[column], "', operation ",
                                steps[step].number, " (", steps[step].transform.name(),
                                "), sample ", ticket.samples[row]));
    }
  }
  if (!fits(column, ticket.samples.size(), value.form)) {
    throw UsageError(
        join_message("column '", recipe_->dataset->columns()[column], "': sample ",
                     ticket.samples[row], " is ", describe(value.form), ", but sample ",
                     ticket.samples[0], " of the same batch is ", describe(forms_[column])),
        "bring all samples to one shape and dtype, by resize or type_cast for example");
  }
  std::byte* const place = rows_[column] + row * value.form.bytes();
  if (value.data != place) copy(place, value.data, value.form);
}

void Assembler::apply(std::size_t column, std::size_t row, const Ticket& ticket, std::size_t step,
                      Value& value) {
  const auto& [transform, number] = recipe_->steps[column][step];
  Random random(recipe_->seed, ticket.pass, static_cast<std::uint64_t>(ticket.samples[row]),
                number);
  const Operation* const operation = transform.operation();
  if (operation == nullptr) {
    value = value_of(transform.function()(tensor_of(value.form, value.data), random));
    return;
  }
  Form form = operation->result(value.form);
  const bool is_last = step + 1 == recipe_->steps[column].size();
  std::byte* output = nullptr;
  if (is_last && fits(column, ticket.samples.size(), form)) {
    output = rows_[column] + row * form.bytes();
  } else {
    std::vector<std::byte>& scratch = scratch_[step % 2];
    if (scratch.size() < form.bytes()) scratch.resize(form.bytes());
    output = scratch.data();
  }
  operation->run(value.form, value.data, output, random);
  value = {std::move(form), output, {}};
}

bool Assembler::fits(std::size_t column, std::size_t num_rows, const Form& form) {
  if (!columns_[column].defined()) {
    at::DimVector sizes{static_cast<std::int64_t>(num_rows)};
    sizes.append(form.sizes.begin(), form.sizes.end());
    columns_[column] = at::empty(sizes, form.dtype);
    rows_[column] = static_cast<std::byte*>(columns_[column].mutable_data_ptr());
    forms_[column] = form;
  }
  return form == forms_[column];
}

Assembler::Value Assembler::value_of(at::Tensor tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu()) {
    throw UsageError("the result is not a dense CPU tensor", "return a dense tensor on the CPU");
  }
  tensor = tensor.contiguous();
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {{tensor.scalar_type(), at::DimVector(tensor.sizes())}, data, std::move(tensor)};
}

}  // namespace trireme::data::detail
