// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/record_table.h>

#include <trireme/base/error.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/search/layouts/layout_search.h>
#include <trireme/tensor/expert_axis.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>

namespace trireme::search {
namespace {

bool have_same_kind(const Transfer& a, const Transfer& b) {
  return a.collective == b.collective && a.axis == b.axis;
}

bool are_alike(const OperatorCall& a, const OperatorCall& b) {
  return a.name == b.name && a.module == b.module && a.reads == b.reads &&
         a.parameters == b.parameters && a.forward_call == b.forward_call &&
         a.work.kind == b.work.kind && a.work.dtype == b.work.dtype;
}

bool are_alike(const ModuleRecord& a, const ModuleRecord& b) {
  return a.num_forward == b.num_forward && a.parameters.size() == b.parameters.size() &&
         std::ranges::equal(a.calls, b.calls,
                            [](const auto& x, const auto& y) { return are_alike(x, y); });
}

bool have_equal_costs(const OperatorCall& a, const OperatorCall& b) {
  const auto is_same = [](const Transfer& x, const Transfer& y) {
    return have_same_kind(x, y) && x.bytes == y.bytes && x.overlaps == y.overlaps;
  };
  return are_alike(a, b) && a.work.flops == b.work.flops && a.work.bytes == b.work.bytes &&
         a.result_bytes == b.result_bytes && a.gradient_bytes == b.gradient_bytes &&
         a.read_bytes == b.read_bytes && std::ranges::equal(a.transfers, b.transfers, is_same);
}

bool have_equal_costs(const ModuleRecord& a, const ModuleRecord& b) {
  return are_alike(a, b) && std::ranges::equal(a.calls, b.calls, [](const auto& x, const auto& y) {
           return have_equal_costs(x, y);
         });
}

// The value at a point of the line through two others. No quantity of a record is negative.
class Line {
 public:
  explicit Line(double position) : position_(position) {}
  double operator()(double few, double many) const {
    return std::max(0.0, few + (many - few) * position_);
  }

 private:
  double position_;  // 0 at the record of few rows, 1 at that of many
};

// Transfers of a call that differ with the number of rows, because another layout was cheaper, are
// those of many rows, in proportion to the rows.
void scale_transfers(std::vector<Transfer>& transfers, const std::vector<Transfer>& many,
                     const Line& line, double share_of_many) {
  if (!std::ranges::equal(transfers, many, have_same_kind)) {
    transfers = many;
    for (Transfer& transfer : transfers) transfer.bytes *= share_of_many;
    return;
  }
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    transfers[i].bytes = line(transfers[i].bytes, many[i].bytes);
  }
}

void scale_call(OperatorCall& call, const OperatorCall& many, const Line& line,
                double share_of_many) {
  call.work.flops = line(call.work.flops, many.work.flops);
  call.work.bytes = line(call.work.bytes, many.work.bytes);
  call.counted_flops = line(call.counted_flops, many.counted_flops);
  call.result_bytes = line(call.result_bytes, many.result_bytes);
  call.gradient_bytes = line(call.gradient_bytes, many.gradient_bytes);
  scale_transfers(call.transfers, many.transfers, line, share_of_many);
  for (std::size_t i = 0; i < call.read_bytes.size(); ++i) {
    call.read_bytes[i] = line(call.read_bytes[i], many.read_bytes[i]);
  }
}

// The smaller number of rows that is recorded. It is not 1, because dims of size 1 are treated
// apart (they are not sharded, and views drop them), and not less than the ranks along `tensor`,
// because operators that shard rows would leave some of these ranks without work.
std::int64_t few_rows(std::int64_t tensor) { return std::max<std::int64_t>(2, tensor); }

}  // namespace

std::optional<ModuleRecord> scaled_record(const RecordOfRows& few, const RecordOfRows& many,
                                          std::int64_t rows) {
  if (!are_alike(few.record, many.record)) return std::nullopt;
  const Line line(static_cast<double>(rows - few.rows) / static_cast<double>(many.rows - few.rows));
  const double share_of_many = static_cast<double>(rows) / static_cast<double>(many.rows);
  ModuleRecord record = few.record;
  for (std::size_t i = 0; i < record.calls.size(); ++i) {
    scale_call(record.calls[i], many.record.calls[i], line, share_of_many);
  }
  // Gradients of parameters have the same size for any number of rows.
  record.gradient_transfers = many.record.gradient_transfers;
  record.input_bytes = line(record.input_bytes, many.record.input_bytes);
  return record;
}

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
                                            repeated_modules(training_.module), trace(rows));
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

Plan RecordTable::plan_of(const SharedAxes& shared) {
  Plan plan = training_.base;
  plan.mesh = {{kDataAxis, ranks_ / shared.size()}};
  // The last axes of every plan, so that their groups lie in the cluster as here.
  add_axes(plan.mesh, shared);
  plan.layouts = layouts(shared);
  return plan;
}

const TracedModule* RecordTable::trace(std::int64_t rows) {
  if (!replays_) return nullptr;
  if (!traces_.contains(rows)) exact_record({}, rows);
  const std::vector<TracedModule>& all = traces_[rows];
  return all.empty() ? nullptr : &all.front();
}

std::optional<ModuleRecord> RecordTable::replayed(const LaidOutModule& laid_out,
                                                  std::int64_t rows) {
  for (const TracedModule& traced : traces_[rows]) {
    try {
      if (auto replayed = replay_module(traced, laid_out)) return std::move(replayed->record);
    } catch (const UsageError&) {
      return {};  // A dry run says where in forward.
    } catch (const c10::Error&) {
      return {};
    }
  }
  return {};
}

// Calls of forward and backward depend on layouts only where a result has other strides, such as
// part of a tensor that is no view. Later records may follow from each of these dry runs.
ModuleRecord RecordTable::dry_run(const LaidOutModule& laid_out, std::int64_t rows) {
  constexpr std::size_t kMostTraces = 4;
  ++num_dry_runs_;
  const std::function<at::Tensor()> forward = loss_of_rows(training_, rows);
  std::vector<TracedModule>& all = traces_[rows];
  if (!replays_ || all.size() >= kMostTraces) {
    return make_record(laid_out,
                       detail::dry_run_module(laid_out.tensors, laid_out.layouts, forward));
  }
  TracedModule traced = trace_module(laid_out, forward);
  ModuleRecord record = make_record(laid_out, traced.dry_run);
  if (traced.trace->is_complete()) all.push_back(std::move(traced));
  return record;
}

const ModuleRecord& RecordTable::exact_record(const SharedAxes& shared, std::int64_t rows) {
  const std::pair key = {shared, rows};
  if (const auto found = exact_.find(key); found != exact_.end()) return found->second;
  const LaidOutModule laid_out = lay_out_module(training_.module, plan_of(shared), &cluster_);
  std::optional<ModuleRecord> record = replayed(laid_out, rows);
  if (!record) {
    record = dry_run(laid_out, rows);
    is_checked_.insert(key);
  }
  if (training_.transform) record = training_.transform(std::move(*record));
  return exact_.emplace(key, std::move(*record)).first->second;
}

const ModuleRecord& RecordTable::checked_record(const SharedAxes& shared, std::int64_t rows) {
  const std::pair key = {shared, rows};
  const ModuleRecord& record = exact_record(shared, rows);
  if (!is_checked_.insert(key).second) return record;
  ++num_dry_runs_;
  ModuleRecord checked =
      record_module(training_.module, plan_of(shared), loss_of_rows(training_, rows), &cluster_);
  if (training_.transform) checked = training_.transform(std::move(checked));
  is_right_ = is_right_ && have_equal_costs(record, checked);
  return exact_.insert_or_assign(key, std::move(checked)).first->second;
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
