// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/learning_rate_schedule.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string_view>

namespace trireme {
namespace {

double checked(std::string_view name, double value, double least = 0,
               double most = std::numeric_limits<double>::max()) {
  if (value >= least && value <= most) return value;
  throw UsageError(join_message("a learning rate schedule was given ", name, " ", value,
                                ", expected a number from ", least, " to ", most),
                   "rates are finite and not below 0");
}

std::int64_t checked_steps(std::string_view name, std::int64_t value) {
  if (value >= 1) return value;
  throw UsageError(
      join_message("a learning rate schedule was given ", name, " ", value, ", expected 1 or more"),
      "give a number of steps");
}

// Returns the share of `steps` that are done when step number `step` begins, in [0, 1].
double done(std::int64_t step, std::int64_t steps) {
  return std::min(1.0, static_cast<double>(step - 1) / static_cast<double>(steps));
}

// Returns a value on half a cosine between `from` and `to`.
double between(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

}  // namespace

double LearningRateSchedule::operator()(std::int64_t step) const {
  return rate_of_(checked_steps("step", step));
}

LearningRateSchedule LearningRateSchedule::constant(double rate) {
  checked("rate", rate);
  return LearningRateSchedule([=](std::int64_t) { return rate; });
}

LearningRateSchedule LearningRateSchedule::linear(double rate, double end, std::int64_t steps) {
  checked("rate", rate);
  checked("end", end);
  checked_steps("steps", steps);
  return LearningRateSchedule(
      [=](std::int64_t step) { return rate + (end - rate) * done(step, steps); });
}

LearningRateSchedule LearningRateSchedule::steps(double rate, std::int64_t period, double factor) {
  checked("rate", rate);
  checked("factor", factor);
  checked_steps("period", period);
  return LearningRateSchedule([=](std::int64_t step) {
    const std::int64_t passed = (step - 1) / period;
    return rate * std::pow(factor, static_cast<double>(passed));
  });
}

LearningRateSchedule LearningRateSchedule::milestones(double rate, std::vector<std::int64_t> after,
                                                      double factor) {
  checked("rate", rate);
  checked("factor", factor);
  for (const std::int64_t number : after) checked_steps("milestone", number);
  if (!std::ranges::is_sorted(after)) {
    throw UsageError("a learning rate schedule was given milestones that do not ascend",
                     "give numbers of steps since the beginning");
  }
  return LearningRateSchedule([=, after = std::move(after)](std::int64_t step) {
    // The number of milestones among the step - 1 steps that are done.
    const auto passed = std::ranges::upper_bound(after, step - 1) - after.begin();
    return rate * std::pow(factor, static_cast<double>(passed));
  });
}

LearningRateSchedule LearningRateSchedule::exponential(double rate, double factor) {
  return LearningRateSchedule::steps(rate, 1, factor);
}

LearningRateSchedule LearningRateSchedule::polynomial(double rate, std::int64_t steps, double power,
                                                      double end) {
  checked("rate", rate);
  checked("end", end);
  checked("power", power);
  checked_steps("steps", steps);
  return LearningRateSchedule([=](std::int64_t step) {
    return end + (rate - end) * std::pow(1 - done(step, steps), power);
  });
}

LearningRateSchedule LearningRateSchedule::cosine(double rate, std::int64_t steps, double end) {
  checked("rate", rate);
  checked("end", end);
  checked_steps("steps", steps);
  return LearningRateSchedule(
      [=](std::int64_t step) { return between(rate, end, done(step, steps)); });
}

LearningRateSchedule LearningRateSchedule::one_cycle(double highest, std::int64_t steps,
                                                     const OneCycle& options) {
  checked("highest rate", highest);
  checked("up", options.up, 0, 1);
  checked("start_divisor", options.start_divisor, 1);
  checked("end_divisor", options.end_divisor, 1);
  checked_steps("steps - 1", steps - 1);
  // The positions of the peak and of the last step are those of PyTorch's OneCycleLR.
  const double last_up = options.up * static_cast<double>(steps) - 1;
  const double last = static_cast<double>(steps) - 1;
  const double start = highest / options.start_divisor;
  return LearningRateSchedule([=, end = start / options.end_divisor](std::int64_t step) {
    const double number = std::min(static_cast<double>(step - 1), last);
    if (number <= last_up) return between(start, highest, last_up > 0 ? number / last_up : 1);
    return between(highest, end, (number - last_up) / (last - last_up));
  });
}

LearningRateSchedule LearningRateSchedule::inverse_square_root(double highest,
                                                               std::int64_t warm_up) {
  checked("highest rate", highest);
  checked_steps("warm_up", warm_up);
  return LearningRateSchedule([=](std::int64_t step) {
    const double share = static_cast<double>(step) / static_cast<double>(warm_up);
    return highest * std::min(share, 1 / std::sqrt(share));
  });
}

LearningRateSchedule LearningRateSchedule::after_warm_up(std::int64_t steps, double start) const {
  checked_steps("steps", steps);
  checked("start", start, 0, 1);
  // The warm-up leads to the first rate of this schedule.
  const double full = (*this)(1);
  const LearningRateSchedule rising([=](std::int64_t step) {
    return full * (start + (1 - start) * static_cast<double>(step) / static_cast<double>(steps));
  });
  return rising.then(steps, *this);
}

LearningRateSchedule LearningRateSchedule::then(std::int64_t steps,
                                                LearningRateSchedule other) const {
  checked_steps("steps", steps);
  return LearningRateSchedule([steps, first = *this, second = std::move(other)](std::int64_t step) {
    return step <= steps ? first(step) : second(step - steps);
  });
}

LearningRateSchedule LearningRateSchedule::times(double factor) const {
  checked("factor", factor);
  return LearningRateSchedule(
      [factor, schedule = *this](std::int64_t step) { return factor * schedule(step); });
}

LearningRateSchedule LearningRateSchedule::scaled(double size, std::int64_t warm_up) const {
  checked("size", size, 1);
  checked("warm_up", static_cast<double>(warm_up));
  return LearningRateSchedule([size, warm_up, schedule = *this](std::int64_t step) {
    if (step >= warm_up) return size * schedule(step);
    return schedule(step) *
           (1 + (size - 1) * static_cast<double>(step) / static_cast<double>(warm_up));
  });
}

}  // namespace trireme
