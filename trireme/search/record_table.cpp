// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/record_table.h>

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

namespace trireme::search {
namespace {

// Neither is 1, because dims of size 1 are treated apart: they are not sharded, and views drop
// them.
constexpr std::int64_t kFewRows = 2;
constexpr std::int64_t kManyRows = 4;

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
      pair = pairs_
                 .emplace(tensor, Pair{.few = {kFewRows, exact_record(tensor, kFewRows)},
                                       .many = {kManyRows, exact_record(tensor, kManyRows)}})
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
