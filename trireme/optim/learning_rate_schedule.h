// SPDX-License-Identifier: Apache-2.0
// Learning rates by step.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace trireme {

/// A learning rate for each step, which depends on the step's number alone, so that a resumed run
/// goes on with the rates of an uninterrupted one. A value; calls may be concurrent.
///
///     const auto schedule = LearningRateSchedule::cosine(0.1, 10'000).after_warm_up(500);
///     LearningRate rates(optimizer, schedule);  // a callback of Model, or, in a loop by hand:
///     for (auto& group : optimizer.param_groups()) group.options().set_lr(schedule(step));
///
/// Every schedule begins with its rate at step 1 and stays as it is after its last step. The rate
/// of step n is that of Python torch after n - 1 calls of scheduler.step(). All throw UsageError
/// for rates that are negative or not finite, and for numbers of steps below 1.
class LearningRateSchedule {
 public:
  /// @param rate_of gets the step's number, from 1 on.
  explicit LearningRateSchedule(std::function<double(std::int64_t step)> rate_of)
      : rate_of_(std::move(rate_of)) {}

  /// Throws UsageError for a step below 1.
  double operator()(std::int64_t step) const;

  static LearningRateSchedule constant(double rate);

  /// From one rate to another in equal steps, there after `steps` of them. torch: LinearLR.
  static LearningRateSchedule linear(double rate, double end, std::int64_t steps);

  /// Times `factor` after each `period` steps. torch: StepLR.
  static LearningRateSchedule steps(double rate, std::int64_t period, double factor = 0.1);

  /// Times `factor` after each of those numbers of steps, which ascend. torch: MultiStepLR.
  static LearningRateSchedule milestones(double rate, std::vector<std::int64_t> after,
                                         double factor = 0.1);

  /// Times `factor` after every step. torch: ExponentialLR.
  static LearningRateSchedule exponential(double rate, double factor);

  /// end + (rate - end) * (1 - done / steps)^power. torch: PolynomialLR, whose end is 0.
  static LearningRateSchedule polynomial(double rate, std::int64_t steps, double power = 1,
                                         double end = 0);

  /// Half a cosine from `rate` down to `end`, there after `steps` steps (Loshchilov and Hutter,
  /// "SGDR", ICLR 2017, without restarts). torch: CosineAnnealingLR as long as that goes down.
  static LearningRateSchedule cosine(double rate, std::int64_t steps, double end = 0);

  struct OneCycle {
    double up = 0.3;              ///< share of the steps in which the rate rises
    double start_divisor = 25;    ///< the first rate is the highest by this
    double end_divisor = 10'000;  ///< the last is the first by this
  };
  /// Up to `highest` and down again along cosines, the last rate at step `steps` (Smith and Topin,
  /// "Super-Convergence", 2018). torch: OneCycleLR without momentum.
  static LearningRateSchedule one_cycle(double highest, std::int64_t steps,
                                        const OneCycle& options);
  static LearningRateSchedule one_cycle(double highest, std::int64_t steps) {
    return one_cycle(highest, steps, {});
  }

  /// Up to `highest` in `warm_up` steps, then highest * sqrt(warm_up / step) (Vaswani et al.,
  /// "Attention Is All You Need", section 5.3).
  static LearningRateSchedule inverse_square_root(double highest, std::int64_t warm_up);

  /// This one, after `steps` steps that lead in equal parts from `start` times its first rate
  /// up to it; no step has `start` itself, so none is lost to a rate of 0. For a batch n times as
  /// large: `LearningRateSchedule::cosine(n * rate, steps).after_warm_up(500, 1.0 / n)` (Goyal et
  /// al., "Accurate, Large Minibatch SGD", section 2.2). Throws UsageError for a start outside [0,
  /// 1].
  LearningRateSchedule after_warm_up(std::int64_t steps, double start = 0) const;

  /// This one for `steps` steps, and then the other from its beginning. torch: SequentialLR.
  LearningRateSchedule then(std::int64_t steps, LearningRateSchedule other) const;

  /// Every rate times a factor.
  LearningRateSchedule times(double factor) const;

  /// For a batch `size` times as large: every rate times `size`, which the first `warm_up` steps
  /// lead up to in equal parts while the schedule below goes on, so that its milestones stay where
  /// they are (Goyal et al., "Accurate, Large Minibatch SGD", sections 2.1 and 2.2; Horovod's
  /// LearningRateWarmupCallback). Throws UsageError for a size below 1 or a warm_up below 0.
  ///
  ///     LearningRateSchedule::steps(0.1, 30 * steps_in_epoch)
  ///         .scaled(world.size, 5 * steps_in_epoch);
  LearningRateSchedule scaled(double size, std::int64_t warm_up) const;

 private:
  std::function<double(std::int64_t)> rate_of_;
};

}  // namespace trireme
