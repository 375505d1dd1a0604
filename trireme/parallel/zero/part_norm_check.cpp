// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/zero/part_norm_check.h>

#include <trireme/base/error.h>

#include <string_view>

namespace trireme::detail {

void PartNormCheck::start(const std::vector<at::Tensor>& gradients, Norms norms) {
  stop();
  std::int64_t num_gradients = 0;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined() || !gradient.has_storage() || gradient.storage().nbytes() == 0) {
      continue;
    }
    ++num_gradients;
    if (is_watched(gradient)) {  // shares a bucket with another, or is a placeholder
      mark(gradient);
      continue;
    }
    watch(gradient, *this);
    watched_.push_back(gradient.storage().getWeakStorageImpl());
  }
  most_norms_ = norms == Norms::kOfAll ? num_gradients - 1 : 0;
  if (!watched_.empty()) expect_accesses(true);
}

void PartNormCheck::stop() {
  num_norms_ = 0;
  if (watched_.empty()) return;
  expect_accesses(false);
  for (const auto& storage : watched_) unwatch(storage._unsafe_get_target());
  watched_.clear();
}

// Recognises torch::nn::utils::clip_grad_norm_ by its operators: it computes norms of gradients,
// and then multiplies each gradient in place by a tensor.
void PartNormCheck::on_access(std::span<const TensorAccess> all) {
  const std::string_view name = operator_accessing();
  if (name == "aten::norm" || name == "aten::linalg_vector_norm" || name == "aten::abs") {
    ++num_norms_;
    return;
  }
  // As torch.amp.GradScaler does, from Python.
  if (name == "aten::_amp_foreach_non_finite_check_and_unscale_") {
    throw UsageError(join_message("gradients of ", whose_,
                                  ", are searched for infinities by this rank alone: ranks would "
                                  "skip different steps"),
                     "call trireme::LossScale with the Sharing of the plan; from Python, use "
                     "bfloat16, which needs no loss scale, or a plan with zero_level 0");
  }
  const bool scales_by_tensor =
      name == "aten::mul_" && all.front().is_written && overload_accessing() == "Tensor";
  if (!scales_by_tensor || num_norms_ <= most_norms_) return;
  num_norms_ = 0;
  throw UsageError(join_message("gradients of ", whose_,
                                ", are scaled by a norm of those that this rank has: each rank "
                                "would clip by another number"),
                   join_message("call trireme::clip_by_global_norm(optimizer, max_norm, ", sharing_,
                                ") in place of torch::nn::utils::clip_grad_norm_ (from Python "
                                "parallel.clip_grad_norm_(max_norm))"));
}

}  // namespace trireme::detail
