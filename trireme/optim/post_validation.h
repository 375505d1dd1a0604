// SPDX-License-Identifier: Apache-2.0
// An optimizer step that does not wait for the other ranks: taken at once as if gradients needed
// neither clipping nor skipping, validated once the sum over all ranks is there, and taken back bit
// for bit where it did not hold (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section
// 4). It does not begin a forward pass before the validation, as theirs does.
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

/// What is to hold for a step; one of these at least.
struct PostValidationOptions {
  /// Gradients of a larger norm are clipped to it, as clip_by_global_norm does.
  std::optional<double> max_norm{};
  /// A step with a gradient that is infinite or not a number, on any rank, is skipped.
  bool skip_not_finite = false;
  /// Gradients are divided by it, and steps skipped, as by LossScale::unscale; validate() adjusts
  /// it. Must live as long as the PostValidation. Null: none.
  LossScale* loss_scale = nullptr;
};

/// What became of a step.
struct ValidatedStep {
  double norm = 0;             ///< of all gradients, before they were clipped; without max_norm 0
  bool is_skipped = false;     ///< parameters are as before the step
  bool is_taken_back = false;  ///< what step() had done did not hold, and was undone
};

/// Steps an optimizer. Parameters, state and loss scale are after validate() those, bit for bit, of
/// a loop that waits before it steps:
///
///     if (all_finite(optimizer, sharing)) {            // skip_not_finite, or loss_scale's unscale
///       clip_by_global_norm(optimizer, max_norm, sharing);
///       optimizer.step();
///     }
///
/// In a loop, everything between step() and validate() goes beside the sum over ranks:
///
///     PostValidation validation(optimizer, {.max_norm = 1.0});
///     for (...) {
///       const auto batch = next_batch();
///       validation.validate();                         // of the step before; nothing at first
///       optimizer.zero_grad();
///       pipeline.step(batch);
///       validation.step(pipeline.sharing());
///       schedule.step();                               // learning rates
///     }
///     validation.validate();
///
/// Between the two the parameters, the optimizer's state and the gradients are not to be read by
/// others nor changed: no forward, backward, evaluation or checkpoint. Learning rates and other
/// settings of the optimizer may change; a step that is taken again has those that it had.
/// Gradients may be reset (zero_grad() does by default), for their memory is kept.
///
/// Memory: kept_bytes().
///
/// Not thread-safe. The optimizer must outlive it. Destroying it validates, which is collective,
/// and only warns where that fails: validate() before, to be told. Where an exception destroys it,
/// the last step stays as it is, and is not validated.
class PostValidation {
 public:
  /// Throws UsageError for another optimizer than SGD, Adam, AdamW, RMSprop and Adagrad, for a norm
  /// that is not above 0, and for options under which every step holds.
  PostValidation(torch::optim::Optimizer& optimizer, const PostValidationOptions& options);
  PostValidation(const PostValidation&) = delete;
  PostValidation& operator=(const PostValidation&) = delete;
  ~PostValidation();

  /// Counts what this rank has of the gradients, starts the sum over ranks, keeps a copy of what
  /// the optimizer is about to change, and steps it. Waits for no other rank, but where a gradient
  /// is distributed and itself a sum still to be made. Where `sharing` has no parts every rank
  /// knows everything: the step is taken as it has to be, and nothing is kept.
  ///
  /// To be called by all ranks of the sharing's group, which start collectives on it in the same
  /// order. Throws UsageError where the step before was not validated: what has been computed since
  /// may be of parameters that have to be taken back. What the optimizer throws comes out of it,
  /// with parameters and state as before the step; gradients are divided by the loss scale then,
  /// and clipped where nothing had to be kept.
  void step(const Sharing& sharing = {});

  /// Waits for the sum, and where the step does not hold takes it back: parameters and state get
  /// the bits that they had, and then gradients are clipped and the optimizer steps again, or the
  /// step is skipped. Returns what became of it; nothing where all steps are validated. Gradients
  /// of a skipped step stay divided by the loss scale. Collective, blocking up to the deadline of
  /// the group.
  ///
  /// Throws UsageError where a gradient, a parameter or its state has been changed since the step;
  /// they stay as they are. Throws CommError where the sum cannot be made; the step is taken back
  /// then. Nothing is left to validate in both cases.
  std::optional<ValidatedStep> validate();

  /// Whether a step has not been validated.
  bool is_pending() const noexcept;

  /// Bytes of the copies, which are used again from step to step: those of the parameters that the
  /// optimizer steps on this rank, and of its state of them. With Adam and P bytes of parameters in
  /// this rank's stages 3 P, with ZeRO over n ranks 3 P / n. 0 before the first step, and where
  /// nothing has to be kept.
  std::int64_t kept_bytes() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
