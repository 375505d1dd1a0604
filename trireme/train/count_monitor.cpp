// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/count_monitor.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/model.h>

#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string_view>

namespace trireme {
namespace {

void check_plan_keeps_counts(const ModelOptions& options) {
  const Plan& plan = options.plan;
  const bool follows = plan.broadcast_buffers && !needs_training_step(plan) &&
                       data_ranks(plan, options.group.size()) > 1;
  if (!follows) return;
  throw UsageError(
      "CountMonitor counts the rows of all ranks, and the plan copies the buffers of rank 0 to all "
      "ranks along data in every step",
      "set plan.broadcast_buffers to false, or train on one rank along data");
}

void check_buffer(std::string_view name, const at::Tensor& buffer) {
  if (at::isIntegralType(buffer.scalar_type(), /*includeBool=*/false) && buffer.dim() <= 1) return;
  throw UsageError(
      join_message("CountMonitor was given the buffer ", name, ", which is ", buffer.scalar_type(),
                   " ", buffer.sizes(), ", expected integers without dims or with one"),
      "count in a torch::kInt64 tensor; Module::to(dtype) converts buffers too, so convert it back "
      "by set_data(buffer.to(torch::kInt64))");
}

std::string names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_buffers()) names.push_back(item.key());
  if (names.empty()) return "no buffers";
  return "the buffers " + list_text(names);
}

// A stage of another rank may have buffers without memory.
bool is_here(const at::Tensor& buffer) { return !detail::is_deferred(buffer) && !buffer.is_meta(); }

}  // namespace

CountMonitor::CountMonitor(CountMonitorOptions options) : options_(std::move(options)) {
  if (options_.buffers.empty()) {
    throw UsageError("CountMonitor was given no buffers",
                     R"(name them, as in {.buffers = {"*.tokens_taken"}})");
  }
  if (options_.every_steps < 1) {
    throw UsageError(
        join_message("CountMonitor looks at every n-th step, got n = ", options_.every_steps),
        "give 1 or more");
  }
}

void CountMonitor::on_run_begin(const RunContext& run) {
  check_plan_keeps_counts(run.model.options());
  buffers_.clear();
  const torch::nn::Module& module = run.model.module();
  for (const std::string& pattern : options_.buffers) {
    bool is_found = false;
    for (const auto& item : module.named_buffers()) {
      if (find_layout({{.pattern = pattern, .placements = {}}}, item.key()) == nullptr) continue;
      is_found = true;
      check_buffer(item.key(), item.value());
      const auto is_same = [&](const auto& known) { return known.first == item.key(); };
      if (std::ranges::none_of(buffers_, is_same)) {
        buffers_.emplace_back(item.key(), item.value());
      }
    }
    if (is_found) continue;
    throw UsageError(join_message("CountMonitor: the pattern ", pattern,
                                  " matches no buffer of the module, which has ", names_of(module)),
                     "correct the pattern, or let the module count; models::MixtureOptions has "
                     "counts_tokens for it");
  }
  std::int64_t elements = 0;
  for (const auto& [name, buffer] : buffers_) elements += buffer.numel();
  counts_.assign(static_cast<std::size_t>(elements), 0);
}

void CountMonitor::on_step_begin(const StepContext& /*step*/) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, buffer] : buffers_) {
    if (is_here(buffer)) at::Tensor(buffer).zero_();
  }
}

// Before any callback can evaluate, which counts too, and copies the buffers of rank 0 to all
// ranks.
void CountMonitor::on_backward_end(const StepContext& /*step*/) { take_counts(); }

void CountMonitor::take_counts() {
  const torch::NoGradGuard no_grad;
  auto count = counts_.begin();
  for (const auto& [name, buffer] : buffers_) {
    if (is_here(buffer)) {
      const at::Tensor grown = full(buffer).to(at::kCPU, at::kDouble).contiguous();
      const auto* const values = grown.const_data_ptr<double>();
      std::transform(values, values + grown.numel(), count, count, std::plus<>());
      at::Tensor(buffer).zero_();
    }
    count += buffer.numel();
  }
}

void CountMonitor::on_step_end(const StepEndContext& step) {
  if (step.is_skipped) take_counts();  // such a step has no end of backward
  if (step.global_step % options_.every_steps != 0) return;
  const ModelOptions& options = step.run.model.options();
  const int ranks = options.group.size();
  if (ranks > 1) {
    at::Tensor sums = torch::tensor(counts_, at::kDouble);
    comm::all_reduce(sums, options.group, comm::ReduceOp::kSum, "counts of buffers");
    // Ranks that work on the same rows have counted the same.
    const int apart = data_ranks(options.plan, ranks) * stage_ranks(options.plan);
    sums.div_(static_cast<double>(ranks) / apart);
    std::copy_n(sums.const_data_ptr<double>(), counts_.size(), counts_.begin());
  }
  auto count = counts_.begin();
  for (const auto& [name, buffer] : buffers_) {
    if (buffer.dim() == 0) step.run.log(name, *count);
    for (std::int64_t i = 0; buffer.dim() == 1 && i < buffer.numel(); ++i) {
      step.run.log(join_message(name, "/", i), count[i]);
    }
    count += buffer.numel();
  }
  std::ranges::fill(counts_, 0);
}

}  // namespace trireme
