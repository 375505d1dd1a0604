// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/optimizer_snapshot.h>

#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <utility>

namespace trireme::detail {
namespace {

// Returns the memory of this rank's part of a tensor, without autograd.
at::Tensor held_memory(const at::Tensor& tensor) {
  return has_layout(tensor) ? to_local(tensor.detach()) : tensor.detach();
}

// Copies a tensor, reusing the memory of the previous step's copy if it fits.
void copy_into(at::Tensor& copy, const at::Tensor& tensor) {
  const at::Tensor memory = held_memory(tensor);
  const bool fits = copy.defined() && copy.sizes() == memory.sizes() &&
                    copy.strides() == memory.strides() && copy.dtype() == memory.dtype() &&
                    copy.device() == memory.device();
  if (!fits) copy = at::empty_strided(memory.sizes(), memory.strides(), memory.options());
  copy.copy_(memory);
}

[[noreturn]] void refuse_change(const char* what, const at::Tensor& stepped, const char* hint) {
  throw UsageError(join_message(what, " of a parameter of shape ", stepped.sizes(),
                                " has changed between a step and its validation"),
                   hint);
}

}  // namespace

OptimizerSnapshot::OptimizerSnapshot(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
OptimizerSnapshot::~OptimizerSnapshot() = default;

torch::optim::OptimizerParamState* OptimizerSnapshot::state_of(const at::Tensor& stepped) const {
  const auto found = optimizer_.state().find(stepped.unsafeGetTensorImpl());
  return found == optimizer_.state().end() ? nullptr : found->second.get();
}

void OptimizerSnapshot::step() {
  const at::NoGradGuard no_grad;
  try {
    keep_all();
    optimizer_.step();
  } catch (...) {
    roll_back();
    throw;
  }
  for (auto& [impl, kept] : kept_) {
    if (!kept.stepped.defined()) continue;
    kept.stepped_version = kept.stepped._version();
    kept.gradient_version = kept.gradient._version();
    kept.state = state_of(kept.stepped);
  }
}

void OptimizerSnapshot::keep_all() {
  groups_.clear();
  for (auto& [impl, kept] : kept_) kept.is_listed = false;
  for (const torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
    std::vector<at::Tensor> with_gradients;
    for (const at::Tensor& stepped : group.params()) {
      Kept& kept = kept_[stepped.unsafeGetTensorImpl()];
      kept.is_listed = true;
      if (!stepped.grad().defined()) continue;
      with_gradients.push_back(stepped);
      if (!kept.stepped.defined()) keep(kept, stepped);  // tied parameters may be listed twice
    }
    groups_.emplace_back(std::move(with_gradients),
                         group.has_options() ? group.options().clone() : nullptr);
  }
  std::erase_if(kept_, [](const auto& item) { return !item.second.is_listed; });
}

void OptimizerSnapshot::keep(Kept& kept, const at::Tensor& stepped) {
  copy_into(kept.copy, stepped);
  torch::optim::OptimizerParamState* const state = state_of(stepped);
  kept.had_state = state != nullptr;
  if (state != nullptr) {
    const StateFields fields = fields_of(*state);
    kept.count = fields.step == nullptr ? 0 : *fields.step;
    for (std::size_t i = 0; i < fields.tensors.size(); ++i) {
      kept.fields[i] = *fields.tensors[i];
      if (kept.fields[i].defined()) copy_into(kept.copies[i], kept.fields[i]);
    }
  }
  kept.gradient = stepped.grad();
  kept.stepped = stepped;  // set last, so that only complete copies are ever restored
}

void OptimizerSnapshot::restore(Kept& kept) {
  held_memory(kept.stepped).copy_(kept.copy);
  torch::optim::OptimizerParamState* const state = state_of(kept.stepped);
  if (!kept.had_state) {
    // The step created the state; without it, the next step starts as the first one did.
    if (state != nullptr) optimizer_.state().erase(kept.stepped.unsafeGetTensorImpl());
    return;
  }
  const StateFields fields = fields_of(*state);
  if (fields.step != nullptr) *fields.step = kept.count;
  for (std::size_t i = 0; i < fields.tensors.size(); ++i) {
    *fields.tensors[i] = kept.fields[i];
    if (kept.fields[i].defined()) held_memory(kept.fields[i]).copy_(kept.copies[i]);
  }
}

void OptimizerSnapshot::release() {
  groups_.clear();
  for (auto& [impl, kept] : kept_) {
    kept.stepped.reset();
    kept.gradient.reset();
    kept.state = nullptr;
    kept.fields = {};
  }
}

void OptimizerSnapshot::roll_back() {
  const at::NoGradGuard no_grad;
  for (auto& [impl, kept] : kept_) {
    if (kept.stepped.defined()) restore(kept);
  }
  release();
}

void OptimizerSnapshot::exchange_gradients() {
  for (auto& [impl, kept] : kept_) {
    if (kept.stepped.defined()) std::swap(kept.stepped.mutable_grad(), kept.gradient);
  }
}

void OptimizerSnapshot::step_again(double factor) {
  const at::NoGradGuard no_grad;
  for (auto& [impl, kept] : kept_) {
    if (!kept.stepped.defined()) continue;
    restore(kept);
    kept.gradient.mul_(factor);
  }
  // Swapping the groups themselves keeps all references to the optimizer's settings valid.
  const auto exchange = [this] {
    exchange_gradients();
    std::swap(optimizer_.param_groups(), groups_);
  };
  exchange();
  try {
    optimizer_.step();
  } catch (...) {
    exchange();
    release();
    throw;
  }
  exchange();
  release();
}

void OptimizerSnapshot::check_unchanged() {
  try {
    for (const auto& [impl, kept] : kept_) {
      if (!kept.stepped.defined()) continue;
      const at::Tensor& gradient = kept.stepped.grad();
      if ((gradient.defined() && !gradient.is_same(kept.gradient)) ||
          kept.gradient._version() != kept.gradient_version) {
        refuse_change("the gradient", kept.stepped,
                      "call validate() before backward, and before a zero_grad that fills with "
                      "zeros");
      }
      // Autograd's version counters reveal in-place changes without a comparison of values.
      if (kept.stepped._version() != kept.stepped_version) {
        refuse_change("the values", kept.stepped,
                      "call validate() before anything else than step() writes to parameters");
      }
      if (state_of(kept.stepped) != kept.state) {
        refuse_change("the optimizer's state", kept.stepped,
                      "call validate() before the optimizer is saved, loaded or given to shard or "
                      "unshard");
      }
    }
  } catch (...) {
    release();
    throw;
  }
}

std::int64_t OptimizerSnapshot::bytes() const noexcept {
  std::size_t all = 0;
  for (const auto& [impl, kept] : kept_) {
    if (kept.copy.defined()) all += kept.copy.nbytes();
    for (const at::Tensor& copy : kept.copies) {
      if (copy.defined()) all += copy.nbytes();
    }
  }
  return static_cast<std::int64_t>(all);
}

}  // namespace trireme::detail
