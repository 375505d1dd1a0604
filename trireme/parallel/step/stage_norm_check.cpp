// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/step/stage_norm_check.h>

#include <trireme/base/error.h>

#include <string_view>

namespace trireme::pipeline {

void StageNormCheck::start(const std::vector<at::Tensor>& gradients) {
  stop();
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined() || !gradient.has_storage() || gradient.storage().nbytes() == 0) {
      continue;
    }
    ++num_gradients_;
    if (detail::is_watched(gradient)) {  // shares a bucket with another, or is a placeholder
      detail::mark(gradient);
      continue;
    }
    detail::watch(gradient, *this);
    watched_.push_back(gradient.storage().getWeakStorageImpl());
  }
  if (!watched_.empty()) detail::expect_accesses(true);
}

void StageNormCheck::stop() {
  if (watched_.empty()) return;
  detail::expect_accesses(false);
  for (const auto& storage : watched_) detail::unwatch(storage._unsafe_get_target());
  watched_.clear();
  num_gradients_ = 0;
  num_norms_ = 0;
}

// Recognises torch::nn::utils::clip_grad_norm_ by its operators: it computes a norm of every
// gradient, and then multiplies each gradient in place by a tensor.
void StageNormCheck::on_access(std::span<const detail::TensorAccess> all) {
  const std::string_view name = detail::operator_accessing();
  if (name == "aten::norm" || name == "aten::linalg_vector_norm" || name == "aten::abs") {
    ++num_norms_;
    return;
  }
  const bool scales_by_tensor =
      name == "aten::mul_" && all.front().is_written && detail::overload_accessing() == "Tensor";
  if (!scales_by_tensor || num_norms_ < num_gradients_) return;
  num_norms_ = 0;
  throw UsageError(
      "gradients of a pipeline are scaled by a norm of the gradients that this rank has, those of "
      "its own stages: each rank would clip by another number",
      "call trireme::clip_by_global_norm(optimizer, max_norm, step.sharing()) in place of "
      "torch::nn::utils::clip_grad_norm_");
}

}  // namespace trireme::pipeline
