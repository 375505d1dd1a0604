// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/post_validation.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/collectives.h>
#include <trireme/optim/counted_gradients.h>
#include <trireme/optim/exact_sum.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/optim/optimizer_snapshot.h>
#include <trireme/optim/state_fields.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <typeinfo>
#include <utility>

namespace trireme {

using detail::for_each_counted;
using detail::for_each_trained;

struct PostValidation::Impl {
  Impl(torch::optim::Optimizer& the_optimizer, const PostValidationOptions& given)
      : optimizer(the_optimizer), options(given), kept(the_optimizer) {}

  bool may_skip() const { return options.skip_not_finite || options.loss_scale != nullptr; }

  void count(const Sharing& sharing);
  void start_sum(const comm::Group& group);
  void finish_sum();
  ValidatedStep decide();

  torch::optim::Optimizer& optimizer;
  PostValidationOptions options;
  detail::OptimizerSnapshot kept;
  bool is_pending = false;
  bool is_optimistic = false;  // the step was taken before the sum over ranks was known

  // Knowledge about the gradients: first of this rank, finally of all ranks.
  std::int64_t num_not_finite = 0;  // ranks with a gradient that is not finite
  detail::ExactSumOfSquares squares;
  double factor = 1;  // the factor for clipping
  at::Tensor words;   // the words that ranks add
  comm::Work sum;
};

// Uses the same order as a loop that waits: clipping counts gradients after division by the loss
// scale.
void PostValidation::Impl::count(const Sharing& sharing) {
  num_not_finite = 0;
  squares = {};
  if (may_skip()) {
    for_each_counted(optimizer, sharing, [&](const at::Tensor& gradient) {
      if (!std::isfinite(detail::largest_magnitude(gradient).item<double>())) num_not_finite = 1;
    });
  }
  if (options.loss_scale != nullptr) options.loss_scale->divide(optimizer);
  if (options.max_norm) {
    for_each_counted(optimizer, sharing,
                     [&](const at::Tensor& gradient) { detail::add_squares(gradient, squares); });
  }
}

void PostValidation::Impl::start_sum(const comm::Group& group) {
  const auto own = squares.words();
  const std::size_t length = options.max_norm ? own.size() : 0;
  // Allocated anew for each step, because the sum of an abandoned step may still be in progress.
  words = at::empty({static_cast<std::int64_t>(length) + 1}, at::kLong);
  auto* const data = words.mutable_data_ptr<std::int64_t>();
  data[0] = num_not_finite;
  std::copy_n(own.begin(), length, data + 1);
  sum = comm::all_reduce_async(words, group, comm::ReduceOp::kSum, "validation of a step");
}

void PostValidation::Impl::finish_sum() {
  sum.wait();
  const auto* const data = words.const_data_ptr<std::int64_t>();
  num_not_finite = data[0];
  if (options.max_norm) std::copy_n(data + 1, squares.words().size(), squares.words().begin());
}

ValidatedStep PostValidation::Impl::decide() {
  ValidatedStep outcome{.norm = std::sqrt(squares.value()),
                        .is_skipped = may_skip() && num_not_finite > 0};
  factor = options.max_norm ? detail::clip_factor(*options.max_norm, outcome.norm) : 1;
  outcome.is_taken_back = is_optimistic && (outcome.is_skipped || factor != 1);
  return outcome;
}

PostValidation::PostValidation(torch::optim::Optimizer& optimizer,
                               const PostValidationOptions& options)
    : impl_(std::make_unique<Impl>(optimizer, options)) {
  if (options.max_norm) detail::check_max_norm(*options.max_norm, "PostValidation");
  if (!options.max_norm && !impl_->may_skip()) {
    throw UsageError("PostValidation was given nothing that could make a step invalid",
                     "give it a max_norm, skip_not_finite or a loss_scale; or step the optimizer "
                     "itself, which waits for nobody");
  }
  if (detail::has_known_state(optimizer)) return;
  throw UsageError(
      join_message("PostValidation cannot take back steps of an optimizer of type ",
                   c10::demangle(typeid(optimizer).name())),
      "use SGD, Adam, AdamW, LAMB, RMSprop or Adagrad, whose state is known; or wait before "
      "the step, by clip_by_global_norm or LossScale::unscale");
}

PostValidation::~PostValidation() {
  // Validation is collective. While an exception propagates, other ranks may not take part, so
  // nothing is waited for.
  if (!impl_->is_pending || std::uncaught_exceptions() > 0) return;
  try {
    static_cast<void>(validate());
  } catch (const std::exception& error) {
    TORCH_WARN("the last step was not validated: ", message_of(error));
  }
}

void PostValidation::step(const Sharing& given) {
  Impl& impl = *impl_;
  if (impl.is_pending) {
    throw UsageError("the step before this one has not been validated",
                     "call validate() after each step(), before the next forward pass: what is "
                     "computed before may be of parameters that have to be taken back");
  }
  const at::NoGradGuard no_grad;
  const Sharing sharing = detail::complete_sharing(given, impl.optimizer);
  impl.count(sharing);
  impl.is_optimistic = sharing.is_part && sharing.group.size() > 1;
  if (impl.is_optimistic) {
    impl.start_sum(sharing.group);
    impl.kept.step();
  } else if (!impl.decide().is_skipped) {
    if (impl.factor != 1) {
      for_each_trained(impl.optimizer, [&](const at::Tensor& parameter) {
        parameter.mutable_grad().mul_(impl.factor);
      });
    }
    impl.optimizer.step();
  }
  impl.is_pending = true;
}

std::optional<ValidatedStep> PostValidation::validate() {
  Impl& impl = *impl_;
  if (!std::exchange(impl.is_pending, false)) return std::nullopt;
  const at::NoGradGuard no_grad;
  if (impl.is_optimistic) {
    impl.kept.check_unchanged();
    try {
      impl.finish_sum();
    } catch (...) {
      impl.kept.roll_back();
      throw;
    }
  }
  const ValidatedStep outcome = impl.decide();
  if (impl.is_optimistic && !outcome.is_taken_back) impl.kept.release();
  if (outcome.is_taken_back) {
    outcome.is_skipped ? impl.kept.roll_back() : impl.kept.step_again(impl.factor);
  }
  if (impl.options.loss_scale != nullptr) impl.options.loss_scale->adjust(!outcome.is_skipped);
  return outcome;
}

bool PostValidation::is_pending() const noexcept { return impl_->is_pending; }

std::int64_t PostValidation::kept_bytes() const noexcept { return impl_->kept.bytes(); }

}  // namespace trireme
