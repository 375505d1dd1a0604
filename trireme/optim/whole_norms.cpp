// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/whole_norms.h>

#include <trireme/comm/collectives.h>
#include <trireme/optim/counted_gradients.h>
#include <trireme/optim/exact_sum.h>
#include <trireme/optim/gradients.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme::detail {
namespace {

std::int64_t num_words() { return static_cast<std::int64_t>(ExactSumOfSquares().words().size()); }

// Adds the exact sums of squares to those that a row of the table holds.
void add_exactly(const at::Tensor& row, const at::Tensor& numbers) {
  ExactSumOfSquares sum;
  add_squares(numbers, sum);
  const auto words = sum.words();
  auto* const all = row.mutable_data_ptr<std::int64_t>();
  for (std::size_t word = 0; word < words.size(); ++word) all[word] += words[word];
}

double read_exactly(const at::Tensor& row) {
  ExactSumOfSquares sum;
  std::copy_n(row.const_data_ptr<std::int64_t>(), num_words(), sum.words().begin());
  return sum.value();
}

}  // namespace

void WholeNorms::add(const at::Tensor& part, const at::Tensor& parameter) {
  if (parameters_.empty()) device_ = part.device();
  const auto [row, is_new] =
      row_of_all_.emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
  if (is_new) {
    Parameter& added = parameters_.emplace_back();
    if (has_layout(parameter)) {
      const Layout layout = layout_of(parameter);
      added = {.is_distributed = true, .is_counted = is_first_holder(layout)};
      mesh_group_ = layout.mesh().group();
      has_distributed_ = true;
    }
  }
  row_of_[part.unsafeGetTensorImpl()] = row->second;
  most_times_ = std::max(most_times_, ++times_[part.unsafeGetTensorImpl()]);
}

WholeNorms::Sums::Sums(const WholeNorms& parameters) : parameters_(parameters) {
  const auto rows = static_cast<std::int64_t>(2 * parameters_.parameters_.size());
  table_ = is_exact() ? at::zeros({rows, num_words()}, at::kLong)
                      : at::zeros({rows, 1}, at::dtype(at::kDouble).device(parameters_.device_));
}

void WholeNorms::Sums::add(const at::Tensor& part, const at::Tensor& update) {
  const auto row = static_cast<std::int64_t>(parameters_.row_of_.at(part.unsafeGetTensorImpl()));
  for (const auto& [place, numbers] : {std::pair(2 * row, part), std::pair(2 * row + 1, update)}) {
    const at::Tensor sum = table_.select(0, place);
    if (is_exact()) {
      add_exactly(sum, numbers);
    } else {
      sum.add_(sum_of_squares_on_device(numbers).to(parameters_.device_, /*non_blocking=*/true));
    }
  }
}

// Adds the rows of distributed parameters over the ranks that hold other parts of them.
void WholeNorms::add_over_mesh(const at::Tensor& table) const {
  const auto rows = static_cast<std::int64_t>(2 * parameters_.size());
  const at::Tensor is_distributed = at::empty({rows, 1}, at::kBool);
  const at::Tensor is_counted = at::empty({rows, 1}, at::kBool);
  for (std::int64_t row = 0; row < rows; ++row) {
    const Parameter& parameter = parameters_[static_cast<std::size_t>(row / 2)];
    is_distributed.mutable_data_ptr<bool>()[row] = parameter.is_distributed;
    is_counted.mutable_data_ptr<bool>()[row] = parameter.is_distributed && parameter.is_counted;
  }
  const at::Tensor nothing = at::zeros({}, table.options());
  const at::Tensor sums =
      at::where(is_counted.to(table.device(), /*non_blocking=*/true), table, nothing);
  comm::all_reduce(sums, mesh_group_, comm::ReduceOp::kSum, "norms of parameters on the mesh");
  table.copy_(at::where(is_distributed.to(table.device(), /*non_blocking=*/true), sums, table));
}

void WholeNorms::Sums::add_up() {
  // Integers add exactly in any order, so that the sums have the same bits with every engine.
  comm::all_reduce(table_, parameters_.group_, comm::ReduceOp::kSum, "norms of parameters");
  if (parameters_.has_distributed_) parameters_.add_over_mesh(table_);
  const auto count = static_cast<std::int64_t>(parameters_.parameters_.size());
  if (!is_exact()) {
    norms_ = table_.sqrt().view({count, 2});
    return;
  }
  norms_ = at::empty({count, 2}, at::kDouble);
  for (std::int64_t row = 0; row < 2 * count; ++row) {
    norms_.mutable_data_ptr<double>()[row] = std::sqrt(read_exactly(table_.select(0, row)));
  }
}

WholeNorms::Sums::Norms WholeNorms::Sums::norms_of(const at::Tensor& part) const {
  const auto row = static_cast<std::int64_t>(parameters_.row_of_.at(part.unsafeGetTensorImpl()));
  const at::Tensor norms = norms_.select(0, row).to(part.device(), /*non_blocking=*/true);
  return {.parameter = norms.select(0, 0), .update = norms.select(0, 1)};
}

}  // namespace trireme::detail
