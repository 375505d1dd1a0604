// SPDX-License-Identifier: Apache-2.0
// The agreement of all ranks in each step: whether the loss is a number, whether any rank has
// failed, and whether this is the last step. The message travels with the gradients and arrives
// before the optimizer runs. So no rank spoils its parameters, and none continues alone.
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/group.h>
#include <trireme/parallel/parallelize.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>

namespace trireme::detail {

/// A loss of any rank is infinite or not a number. Thrown on all ranks with the same text.
class NonFiniteLoss : public TrainingError {
 public:
  /// @param message the text without a hint.
  /// @param is_own true if it is the loss of this rank.
  NonFiniteLoss(const std::string& message, bool is_own)
      : TrainingError(message, ""), is_own_(is_own) {}
  bool is_own() const noexcept { return is_own_; }

 private:
  bool is_own_;
};

/// Every rank calls start and then finish in every step. Not thread-safe.
class StepAgreement {
 public:
  /// What a rank tells the others with a step.
  struct Wish {
    bool to_stop = false;     ///< wants to stop after this step
    bool to_save = false;     ///< wants a checkpoint after this step
    bool has_failed = false;  ///< an exception is kept on this rank
  };

  /// The result of a step over all ranks.
  struct Outcome {
    float loss = 0;           ///< the loss of this rank
    bool is_last = false;     ///< true if any rank wants to stop
    bool is_saved = false;    ///< true if any rank wants a checkpoint
    bool has_failed = false;  ///< true if any rank has failed
  };

  /// @param parallelized carries the messages between the ranks of `group` and must outlive this
  /// object. If it is null, finish sends a message of its own.
  StepAgreement(Parallelized* parallelized, comm::Group group)
      : parallelized_(parallelized), group_(std::move(group)) {}

  /// Gives the loss of this rank, a scalar, and its wishes to the last backward() of the step,
  /// which sends them. Call it before that backward().
  void start(const at::Tensor& loss, Wish wish);

  /// Returns the result, after that backward(). If the loss of any rank is infinite or not a
  /// number, throws NonFiniteLoss on every rank. The text is the same on all ranks and names epoch,
  /// step and these ranks.
  Outcome finish(std::int64_t epoch, std::int64_t step);

 private:
  [[noreturn]] void fail(float loss, std::int64_t epoch, std::int64_t step) const;

  Parallelized* parallelized_;
  comm::Group group_;
  at::Tensor loss_;
  at::Tensor number_;  // without a Parallelized
};

}  // namespace trireme::detail
