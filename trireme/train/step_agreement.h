// SPDX-License-Identifier: Apache-2.0
// Agreement of all ranks about whether a step's loss is a number, whether anything has failed, and
// whether it is the last step. It travels with the gradients and comes before the optimizer, so
// that no rank spoils its parameters and none goes on alone.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/parallelize.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace trireme::detail {

/// Used by every rank in every step: start, then finish. Not thread-safe.
class StepAgreement {
 public:
  /// What a rank has to say with a step.
  struct Wish {
    bool to_stop = false;  ///< after this step
    bool to_save = false;  ///< a checkpoint after this step
    bool has_failed = false;
  };

  struct Outcome {
    float loss = 0;           ///< this rank's
    bool is_last = false;     ///< a rank wants to stop
    bool is_saved = false;    ///< a rank wants a checkpoint
    bool has_failed = false;  ///< something of some rank
  };

  /// @param parallelized carries the agreement of all ranks of `group`; must outlive it. Null: a
  /// message of its own does, in finish.
  StepAgreement(Parallelized* parallelized, comm::Group group)
      : parallelized_(parallelized), group_(std::move(group)) {}

  /// Tells the others about `loss`, a scalar, and what this rank wishes, with the step's last
  /// backward(), which comes after.
  void start(const at::Tensor& loss, Wish wish);

  /// What came of it, after that backward(). Throws TrainingError on every rank, with one text that
  /// names epoch, step and the ranks, where the loss of any is infinite or not a number.
  Outcome finish(std::int64_t epoch, std::int64_t step);

 private:
  [[noreturn]] void fail(float loss, std::int64_t epoch, std::int64_t step) const;

  Parallelized* parallelized_;
  comm::Group group_;
  at::Tensor loss_;
  at::Tensor number_;  // without a Parallelized
};

}  // namespace trireme::detail
