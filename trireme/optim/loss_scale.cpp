// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/loss_scale.h>

#include <trireme/base/error.h>
#include <trireme/optim/counted_gradients.h>
#include <trireme/tensor/dry_run/dry_run.h>

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>

namespace trireme {

LossScale::LossScale(const LossScaleOptions& options) : options_(options), value_(options.initial) {
  const bool is_finite = std::isfinite(options.initial) && std::isfinite(options.growth) &&
                         std::isfinite(options.minimum);
  if (is_finite && options.initial > 0 && options.growth >= 1 && options.growth_interval > 0 &&
      options.backoff > 0 && options.backoff <= 1 && options.minimum > 0) {
    return;
  }
  throw UsageError(join_message("loss scale: initial ", options.initial, ", growth ",
                                options.growth, " every ", options.growth_interval,
                                " steps, backoff ", options.backoff, ", minimum ", options.minimum),
                   "scale, interval and minimum are above 0 and finite, growth 1 or more, backoff "
                   "above 0 and at most 1");
}

at::Tensor LossScale::scale(const at::Tensor& loss) const { return loss.mul(value_); }

bool LossScale::unscale(torch::optim::Optimizer& optimizer, const Sharing& sharing) {
  // Every rank gets the same answer, so that all ranks skip the same steps and keep the same scale.
  const bool has_values = tensor::DryRun::of_thread() == nullptr;
  const bool are_finite = !has_values || all_finite(optimizer, sharing);
  if (are_finite && has_values) divide(optimizer);
  adjust(are_finite);
  return are_finite;
}

void LossScale::divide(torch::optim::Optimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  detail::for_each_trained(optimizer, [&](const at::Tensor& parameter) {
    parameter.mutable_grad().mul_(1 / value_);  // exact for powers of two
  });
}

void LossScale::adjust(bool were_finite) {
  if (!were_finite) {
    value_ = std::max(options_.minimum, value_ * options_.backoff);
    good_steps_ = 0;
    return;
  }
  if (++good_steps_ >= options_.growth_interval) {
    value_ *= options_.growth;
    good_steps_ = 0;
  }
}

void LossScale::restore(const State& state) {
  if (!(std::isfinite(state.value) && state.value > 0) || state.good_steps < 0) {
    throw UsageError(join_message("loss scale: cannot go on with a scale of ", state.value,
                                  " after ", state.good_steps, " steps"),
                     "give what state() returned");
  }
  value_ = state.value;
  good_steps_ = state.good_steps;
}

}  // namespace trireme
