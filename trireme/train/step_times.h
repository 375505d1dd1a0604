// SPDX-License-Identifier: Apache-2.0
// The times of the phases of a step, which Model measures and passes to callbacks.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trireme {

/// The phases of a step. All times are those of the training thread. If a device such as a GPU
/// works asynchronously, the thread waits for it where the loss is read. That time counts as
/// backward.
enum class Phase : std::uint8_t {
  kData,      ///< waiting for batches
  kForward,   ///< moving the batch to the device, forward and loss
  kBackward,  ///< backward without communication; with stages also forward, which alternates with
              ///< it
  kCommunication,  ///< starting the exchange of gradients, and waiting for other ranks at its end
  kOptimizer,      ///< zero_grad, loss scale, clipping, step
  kCallbacks,      ///< hooks since the optimizer of the step before, and evaluations in an epoch
};

/// Returns the name of a phase, such as `data` or `forward`.
std::string_view name_of(Phase phase);

/// One phase of a step and when it took place.
struct PhaseSpan {
  Phase phase = Phase::kData;                   ///< what was done
  std::chrono::steady_clock::time_point begin;  ///< when it began
  std::chrono::steady_clock::time_point end;    ///< when it ended

  /// Returns its duration in seconds.
  double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
};

/// The seconds of each phase of a step, summed over its micro-batches.
struct StepSeconds {
  double data = 0;           ///< waiting for batches
  double forward = 0;        ///< moving the batch to the device, forward and loss
  double backward = 0;       ///< backward; with stages also forward
  double communication = 0;  ///< the exchange of gradients, as far as it is waited for
  double optimizer = 0;      ///< zero_grad, loss scale, clipping, step
  double callbacks = 0;      ///< hooks, and evaluations in an epoch

  /// Returns the time of the step itself, without callbacks.
  double total() const { return data + forward + backward + communication + optimizer; }
};

/// Returns the sum of the spans of each phase.
StepSeconds sum_of(std::span<const PhaseSpan> spans);

namespace detail {

/// Measures the phases of successive steps. Reads the clock twice per phase. Not thread-safe.
class StepTimer {
 public:
  /// Calls `call`, adds its time to `phase` and returns its result. The time counts also if `call`
  /// throws.
  template <typename Call>
  decltype(auto) measure(Phase phase, const Call& call) {
    const Measurement measurement(*this, phase);
    return call();
  }

  /// Moves the last `seconds` of the latest measurement to another phase.
  void split_last(Phase phase, double seconds);

  /// Ends the step and returns its spans in order, valid until the next step ends. Later
  /// measurements belong to the next step.
  std::span<const PhaseSpan> end_step();

  /// Drops the measurements of the current step.
  void clear() { running_.clear(); }

 private:
  class Measurement {
   public:
    Measurement(StepTimer& timer, Phase phase) : timer_(timer), phase_(phase) {}
    Measurement(const Measurement&) = delete;
    Measurement& operator=(const Measurement&) = delete;
    ~Measurement() {
      timer_.running_.push_back({phase_, begin_, std::chrono::steady_clock::now()});
    }

   private:
    StepTimer& timer_;
    Phase phase_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };

  std::vector<PhaseSpan> running_;
  std::vector<PhaseSpan> ended_;
};

}  // namespace detail
}  // namespace trireme
