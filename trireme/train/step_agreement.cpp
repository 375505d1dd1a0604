// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/step_agreement.h>

#include <trireme/comm/collectives.h>
#include <trireme/report/number.h>

#include <ATen/ops/sub.h>

#include <cmath>
#include <string>
#include <vector>

namespace trireme::detail {
namespace {

// Each rank contributes one number. The sum over fewer than 4096 ranks encodes how many ranks want
// to stop and to save. fp32 represents it exactly if no rank has failed. If one has, the other
// wishes do not matter.
constexpr double kSave = 4096;
constexpr double kFailed = kSave * 4096;

}  // namespace

void StepAgreement::start(const at::Tensor& loss, Wish wish) {
  loss_ = loss;
  // x - x is 0 for a finite number and NaN for any other, and a sum over ranks keeps the NaN.
  const at::Tensor value = loss.to(at::kFloat);
  const double code =
      (wish.to_stop ? 1 : 0) + (wish.to_save ? kSave : 0) + (wish.has_failed ? kFailed : 0);
  const at::Tensor number = at::sub(value, value).add_(code);
  if (parallelized_ == nullptr) {
    number_ = number;
    return;
  }
  // The sum that travels with the gradients is over the ranks along `data` only.
  const DeviceMesh& mesh = parallelized_->mesh();
  if (mesh.defined()) comm::all_reduce(number, mesh.group(), comm::ReduceOp::kSum, "wishes");
  parallelized_->add_to_step(number);
}

StepAgreement::Outcome StepAgreement::finish(std::int64_t epoch, std::int64_t step) {
  const auto loss = loss_.item<float>();
  loss_.reset();
  if (parallelized_ == nullptr) {
    comm::all_reduce(number_, group_, comm::ReduceOp::kSum, "wishes");
  }
  const double sum =
      parallelized_ == nullptr ? number_.item<double>() : parallelized_->sum_of_step();
  if (std::isnan(sum)) fail(loss, epoch, step);
  return {.loss = loss,
          .is_last = std::fmod(sum, kSave) > 0,
          .is_saved = std::fmod(sum, kFailed) >= kSave,
          .has_failed = sum >= kFailed};
}

void StepAgreement::fail(float loss, std::int64_t epoch, std::int64_t step) const {
  std::string where;
  const std::string own = std::isfinite(loss) ? "" : report::shortest(loss);
  const std::vector<std::string> all = comm::all_gather_text(own, group_);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    where += join_message(where.empty() ? "" : ", ", all[rank]);
    if (all.size() > 1) where += join_message(" on rank ", rank);
  }
  throw NonFiniteLoss(join_message("the loss is not a number in epoch ", epoch, ", step ", step,
                                   ": ", where, "; no parameter was changed by this step"),
                      !std::isfinite(loss));
}

}  // namespace trireme::detail
