// SPDX-License-Identifier: Apache-2.0
// An optimizer step that does not wait for other ranks. The step is taken immediately, as if
// gradients needed neither clipping nor skipping. When the sum over all ranks is known, the step is
// validated, and undone bit by bit if the assumption was wrong (Qi et al., "Zero Bubble Pipeline
// Parallelism", ICLR 2024, section 4). Unlike in the paper, no forward pass begins before the
// validation.
#pragma once

#include <trireme/optim/gradients.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace torch::optim {
class Optimizer;
}

namespace trireme {

class LossScale;

/// The conditions that a step must fulfil; at least one must be given.
struct PostValidationOptions {
  /// The maximum norm. Larger gradients are clipped to it, as by clip_by_global_norm.
  std::optional<double> max_norm{};
  /// True to skip a step if any gradient on any rank is infinite or NaN.
  bool skip_not_finite = false;
  /// A loss scale, or nullptr for none. Gradients are divided by it and steps are skipped as by
  /// LossScale::unscale; validate() adjusts it. It must outlive the PostValidation.
  LossScale* loss_scale = nullptr;
};

/// The outcome of a step.
struct ValidatedStep {
  double norm = 0;             ///< the norm of all gradients before clipping; 0 without max_norm
  bool is_skipped = false;     ///< true if parameters are the same as before the step
  bool is_taken_back = false;  ///< true if the result of step() was invalid and undone
};

/// Steps an optimizer without waiting for other ranks. After validate(), parameters, state and loss
/// scale are bit by bit those of a loop that waits before each step:
///
///     if (all_finite(optimizer, sharing)) {            // skip_not_finite, or loss_scale's unscale
///       clip_by_global_norm(optimizer, max_norm, sharing);
///       optimizer.step();
///     }
///
/// In a training loop, everything between step() and validate() overlaps with the sum over ranks:
///
///     PostValidation validation(optimizer, {.max_norm = 1.0});
///     for (...) {
///       const auto batch = next_batch();
///       validation.validate();                         // the previous step, if any
///       optimizer.zero_grad();
///       pipeline.step(batch);
///       validation.step(pipeline.sharing());
///       schedule.step();                               // learning rates
///     }
///     validation.validate();
///
/// Between step() and validate(), other code must neither read nor change the parameters, the
/// optimizer's state and the gradients: no forward, backward, evaluation or checkpoint. Learning
/// rates and other settings of the optimizer may change; if the step is repeated, it uses the
/// settings it had. Gradients may be reset (as zero_grad() does by default), because their memory
/// is kept.
///
/// kept_bytes() returns the memory for copies.
///
/// Not thread-safe. The optimizer must outlive this object. The destructor validates, which is
/// collective, and only warns if that fails; call validate() before to get the error. If an
/// exception destroys the object, the last step stays as it is and is not validated.
class PostValidation {
 public:
  /// Refers to `optimizer`. Throws UsageError for an optimizer other than SGD, Adam, AdamW, LAMB,
  /// RMSprop and Adagrad, for a norm that is not above 0, and if no condition is given.
  PostValidation(torch::optim::Optimizer& optimizer, const PostValidationOptions& options);
  PostValidation(const PostValidation&) = delete;
  PostValidation& operator=(const PostValidation&) = delete;
  ~PostValidation();

  /// Counts this rank's gradients, starts the sum over ranks, keeps a copy of what the optimizer
  /// will change, and steps the optimizer. Waits for other ranks only if a distributed gradient has
  /// pending partial sums. If `sharing` has no parts, every rank knows all gradients: the final
  /// step is taken immediately, and no copy is kept.
  ///
  /// All ranks of the sharing's group must call it, and must start collectives on the group in the
  /// same order. Throws UsageError if the previous step was not validated, because later
  /// computation may have used parameters that must be undone. Rethrows exceptions of the
  /// optimizer, with parameters and state as before the step. Gradients are then divided by the
  /// loss scale, and clipped if no copy was necessary.
  void step(const Sharing& sharing = {});

  /// Waits for the sum over ranks. If the step was invalid, restores parameters and state bit by
  /// bit; then either clips the gradients and steps again, or skips the step. Returns the outcome,
  /// or std::nullopt if there is no step to validate. Gradients of a skipped step stay divided by
  /// the loss scale. Collective; blocks until the deadline of the group.
  ///
  /// Throws UsageError if a gradient, a parameter or its state was changed since the step; they
  /// stay as they are. Throws CommError if the sum fails; the step is then undone. In both cases
  /// nothing is left to validate.
  std::optional<ValidatedStep> validate();

  /// Returns true if there is a step that has not been validated.
  bool is_pending() const noexcept;

  /// Returns the size in bytes of the copies, which are reused from step to step. They hold the
  /// parameters that the optimizer steps on this rank, and their state. With Adam and P bytes of
  /// parameters on this rank, the size is 3 P; with ZeRO over n ranks, it is 3 P / n. It is 0
  /// before the first step, and if no copies are necessary.
  std::int64_t kept_bytes() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
