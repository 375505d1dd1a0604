// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/record_table.h>

#include <trireme/base/error.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/search/layouts/layout_search.h>
#include <trireme/search/training/loss_of_rows.h>
#include <trireme/tensor/expert_axis.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::search {
namespace {

// The smaller number of rows that is recorded. It is not 1, because dims of size 1 are treated
// apart (they are not sharded, and views drop them), and not less than the ranks along `tensor`,
// because operators that shard rows would leave some of these ranks without work.
std::int64_t few_rows(std::int64_t tensor) { return std::max<std::int64_t>(2, tensor); }

}  // namespace

void add_axes(std::vector<MeshAxis>& mesh, const SharedAxes& shared) {
  if (shared.context > 1) mesh.push_back({kContextAxis, shared.context});
  if (shared.expert > 1) mesh.push_back({kExpertAxis, shared.expert});
  if (shared.tensor > 1) mesh.push_back({"tensor", shared.tensor});
}

const ParameterLayouts& RecordTable::layouts(std::int64_t tensor) {
  if (!training_.tensor_layouts.empty()) return training_.tensor_layouts;
  const auto [found, is_new] = layouts_.try_emplace(tensor);
  if (!is_new) return found->second;
  // With a single row, sharding the batch is no choice: that is what `data` is for. Models so small
  // that a row only waits for kernels to start are given more.
  constexpr std::int64_t kManyRows = 32;
  for (const std::int64_t rows : {std::int64_t{1}, std::max(kManyRows, 2 * tensor)}) {
    try {
      const FoundLayouts all = find_layouts(training_, cluster_, ranks_, tensor, rows,
                                            repeated_modules(training_.module));
      if (all.seconds >= all.replicated_seconds) continue;
      found->second = all.layouts;
      break;
    } catch (const c10::Error&) {
      // Forward does not accept so few rows: batch norm needs more than one value.
      if (rows > 1) throw;
    }
  }
  return found->second;
}

const ParameterLayouts& RecordTable::experts() {
  if (!experts_) {
    try {
      experts_ = expert_layouts(*training_.module);
    } catch (const UsageError&) {
      experts_.emplace();
    }
  }
  return *experts_;
}

ParameterLayouts RecordTable::layouts(const SharedAxes& shared) {
  ParameterLayouts all;
  if (shared.expert > 1) all = experts();
  if (shared.tensor > 1) all = join({std::move(all), layouts(shared.tensor)});
  return all;
}

const ModuleRecord& RecordTable::exact_record(const SharedAxes& shared, std::int64_t rows) {
  if (const auto found = exact_.find({shared, rows}); found != exact_.end()) return found->second;
  Plan plan = training_.base;
  plan.mesh = {{kDataAxis, ranks_ / shared.size()}};
  // The last axes of every plan, so that their groups lie in the cluster as here.
  add_axes(plan.mesh, shared);
  plan.layouts = layouts(shared);
  ModuleRecord record =
      record_module(training_.module, plan, loss_of_rows(training_, rows), &cluster_);
  if (training_.transform) record = training_.transform(std::move(record));
  return exact_.emplace(std::pair(shared, rows), std::move(record)).first->second;
}

const ModuleRecord& RecordTable::record(const SharedAxes& shared, std::int64_t rows) {
  if (const auto found = scaled_.find({shared, rows}); found != scaled_.end()) return found->second;
  // Fewer rows than ranks along `tensor` cannot be sharded over all of them: activations then have
  // other layouts, and often more memory.
  if (rows < shared.tensor) return exact_record(shared, rows);
  const std::int64_t few = few_rows(shared.tensor);
  // A single row on ranks along `context` is what this axis is for.
  if (shared.context > 1 && rows < few) return exact_record(shared, rows);
  auto scaled = scaled_record({.rows = few, .record = exact_record(shared, few)},
                              {.rows = 2 * few, .record = exact_record(shared, 2 * few)}, rows);
  if (!scaled) return exact_record(shared, rows);
  return scaled_.emplace(std::pair(shared, rows), std::move(*scaled)).first->second;
}

}  // namespace trireme::search
