// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/record_table.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme::search {
namespace {

// The smaller number of rows that is recorded. It is not 1, because dims of size 1 are treated
// apart (they are not sharded, and views drop them), and not less than the ranks along `tensor`,
// because operators that shard rows would leave some of these ranks without work.
std::int64_t few_rows(std::int64_t tensor) { return std::max<std::int64_t>(2, tensor); }

std::vector<at::Tensor> inputs_of_rows(const std::vector<at::Tensor>& inputs, std::int64_t rows) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& input : inputs) {
    if (input.dim() == 0) {
      all.push_back(input);
      continue;
    }
    std::vector<std::int64_t> sizes = input.sizes().vec();
    sizes.front() = rows;
    all.push_back(at::empty(sizes, input.options().device(at::kMeta)));
  }
  return all;
}

}  // namespace

ModuleRecord RecordTable::exact_record(std::int64_t tensor, std::int64_t rows) const {
  Plan plan = training_.base;
  // `tensor` is the last axis of every plan, so that its groups lie in the cluster as here.
  plan.mesh = {{kDataAxis, ranks_ / tensor}, {"tensor", tensor}};
  plan.layouts = tensor > 1 ? training_.tensor_layouts : keep_whole("*");
  const std::vector<at::Tensor> inputs = inputs_of_rows(training_.inputs, rows);
  ModuleRecord record = record_module(
      training_.module, plan, [&] { return training_.forward(inputs).front(); }, &cluster_);
  return training_.transform ? training_.transform(std::move(record)) : record;
}

const ModuleRecord& RecordTable::record(std::int64_t tensor, std::int64_t rows) {
  const auto [found, is_new] = records_.try_emplace({tensor, rows});
  if (!is_new) return found->second;
  try {
    auto pair = pairs_.find(tensor);
    if (pair == pairs_.end()) {
      const std::int64_t few = few_rows(tensor);
      pair = pairs_
                 .emplace(tensor, Pair{.few = {few, exact_record(tensor, few)},
                                       .many = {2 * few, exact_record(tensor, 2 * few)}})
                 .first;
    }
    auto scaled = scaled_record(pair->second.few, pair->second.many, rows);
    found->second = scaled ? std::move(*scaled) : exact_record(tensor, rows);
  } catch (...) {
    records_.erase(found);
    throw;
  }
  return found->second;
}

}  // namespace trireme::search
