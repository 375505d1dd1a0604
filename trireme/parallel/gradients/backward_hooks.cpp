// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradients/backward_hooks.h>

#include <trireme/base/error.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>

namespace trireme::detail {

namespace autograd = torch::autograd;

class BackwardHooks::Hook final : public autograd::PostAccumulateGradHook {
 public:
  Hook(BackwardHooks* hooks, std::size_t parameter) : hooks_(hooks), parameter_(parameter) {}
  void operator()(const autograd::Variable&) override { hooks_->on_gradient(parameter_); }

 private:
  BackwardHooks* hooks_;  // outlives the hook: its destructor removes all hooks
  std::size_t parameter_;
};

BackwardHooks::BackwardHooks(Reducer& reducer, std::int64_t micro_batches,
                             std::function<void()> check_module)
    : reducer_(reducer), micro_batches_(micro_batches), check_module_(std::move(check_module)) {
  for (std::size_t index = 0; index < reducer_.size(); ++index) {
    const at::Tensor& parameter = reducer_.parameter(index);
    autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(this, index));
    if (!reducer_.is_sharded(index)) continue;
    // Removes the placeholder of a sharded gradient before autograd would accumulate into it.
    early_hooks_.emplace_back(
        parameter, parameter.register_hook([this, index](const at::Tensor& /*gradient*/) {
          reducer_.shards()->clear_gradient(index);
        }));
  }
}

BackwardHooks::~BackwardHooks() {
  for (std::size_t index = 0; index < reducer_.size(); ++index) {
    autograd::impl::set_post_acc_grad_hooks(reducer_.parameter(index), nullptr);
  }
  for (const auto& [parameter, hook] : early_hooks_) parameter.remove_hook(hook);
}

template <typename Call>
void BackwardHooks::take_time(const Call& call) {
  const auto began = std::chrono::steady_clock::now();
  call();
  exchanges_.this_step +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void BackwardHooks::hold_back(bool on) {
  const std::lock_guard lock(mutex_);
  num_holding_back_ += on ? 1 : -1;
}

void BackwardHooks::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  if (pass_id_ != autograd::get_current_graph_task_id()) begin_pass();
  reducer_.set_used(index);
  if (!is_last_pass()) return;
  take_time([&] { reducer_.complete(index); });
}

void BackwardHooks::begin_pass() {
  if (is_broken_ || pass_id_ != kNoPass) {
    throw UsageError(
        is_broken_
            ? "a step of this rank was interrupted, and the other ranks have gone on without it"
            : "a backward pass started while another one of the same module had not ended",
        "an exception left an earlier backward(), two run at once, or one runs inside another "
        "(recomputation by hand; trireme::recompute works here); end this process");
  }
  reducer_.check_parameters();
  if (check_module_) check_module_();
  reducer_.check_optimizers();
  if (Shards* const shards = reducer_.shards()) shards->check();
  pass_id_ = autograd::get_current_graph_task_id();
  is_held_back_ = num_holding_back_ > 0;
  if (is_last_pass()) reducer_.begin();
  autograd::Engine::get_default_engine().queue_callback([this] { end_pass(); });
}

void BackwardHooks::end_pass() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  pass_id_ = kNoPass;
  if (autograd::get_current_node() != nullptr) {
    throw UsageError("a backward pass of the module ran inside another backward pass",
                     "for recomputation call trireme::recompute, which needs no second pass");
  }
  if (is_held_back_ || ++pass_ < micro_batches_) return;
  is_broken_ = true;  // stays true if finish() throws
  take_time([&] { finish(); });
  exchanges_ = {.last_step = exchanges_.this_step, .this_step = 0};
  is_broken_ = false;
}

void BackwardHooks::finish() {
  reducer_.finish(static_cast<double>(micro_batches_));
  pass_ = 0;
}

bool BackwardHooks::join_step() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  if (is_broken_ || pass_id_ != kNoPass) {
    throw UsageError("join was called while a backward pass had not ended",
                     "call it after the loop, outside of backward()");
  }
  is_broken_ = true;
  reducer_.begin(/*is_active=*/reducer_.uses_any());
  finish();
  is_broken_ = false;
  return reducer_.num_active_ranks() > 0;
}

void BackwardHooks::finish_without_backward() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  if (is_broken_) {
    throw UsageError("the exchange of gradients of this rank was interrupted",
                     "the other ranks cannot be served any more; end this process");
  }
  is_broken_ = true;
  reducer_.forget_unsent();
  if (!reducer_.has_begun()) reducer_.begin();
  finish();
  pass_id_ = kNoPass;
  exchanges_ = {};
  is_broken_ = false;
}

void BackwardHooks::abandon_step(bool others_take_part) {
  const std::lock_guard lock(mutex_);
  is_broken_ = is_broken_ || (others_take_part && (pass_ != 0 || pass_id_ != kNoPass));
  pass_id_ = kNoPass;
  pass_ = 0;
  exchanges_.this_step = 0;
  reducer_.abandon();
}

}  // namespace trireme::detail
