// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/execution_context.h>

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>

namespace trireme::detail {

ExecutionContext::ExecutionContext(const std::vector<std::shared_ptr<torch::nn::Module>>& modules)
    : modules_(modules),
      keys_(c10::impl::tls_local_dispatch_key_set()),
      autograd_(c10::AutogradState::get_tls_state()),
      caches_casts_(at::autocast::is_autocast_cache_enabled()) {
  for (const c10::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    autocast_dtypes_.emplace_back(device, at::autocast::get_autocast_dtype(device));
  }
  for (const auto& module : modules_) {
    for (const auto& each : module->modules()) training_.emplace_back(each, each->is_training());
  }
}

void ExecutionContext::restore() const {
  c10::impl::_force_tls_local_dispatch_key_set(keys_);
  c10::AutogradState::set_tls_state(autograd_);
  for (const auto& [device, dtype] : autocast_dtypes_) {
    at::autocast::set_autocast_dtype(device, dtype);
  }
  at::autocast::set_autocast_cache_enabled(caches_casts_);
  for (const auto& [module, is_training] : training_) {
    // train() also changes submodules. They come after their parents, and are corrected then.
    if (module->is_training() != is_training) module->train(is_training);
  }
}

ExecutionContext::Restored::Restored(const ExecutionContext& context) : outer_(context.modules_) {
  context.restore();
  at::autocast::set_autocast_cache_enabled(false);
}

ExecutionContext::Restored::~Restored() { outer_.restore(); }

}  // namespace trireme::detail
