// SPDX-License-Identifier: Apache-2.0
// Where the time of a step goes: what Model measures, and callbacks get.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trireme {

/// On a device that works on its own, such as a GPU, these are times of the thread that trains: it
/// waits for the device where the loss is read, which counts as backward.
enum class Phase : std::uint8_t {
  kData,           ///< waiting for batches
  kForward,        ///< moving the batch to the device, forward and loss
  kBackward,       ///< without; in stages forward too, for they take turns
  kCommunication,  ///< exchanging gradients: starting it, and waiting for other ranks at the end
  kOptimizer,      ///< zero_grad, loss scale, clipping, step
  kCallbacks,  ///< hooks since the optimizer of the step before, and evaluations within an epoch
};

/// `data`, `forward` and so on.
std::string_view name_of(Phase phase);

struct PhaseSpan {
  Phase phase = Phase::kData;
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;

  double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
};

/// By phase, summed over micro-batches.
struct StepSeconds {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double communication = 0;
  double optimizer = 0;
  double callbacks = 0;

  /// Of the step itself, without callbacks.
  double total() const { return data + forward + backward + communication + optimizer; }
};

StepSeconds sum_of(std::span<const PhaseSpan> spans);

namespace detail {

/// Measures the phases of one step after the other: two looks at the clock for each. Not
/// thread-safe.
class StepTimer {
 public:
  /// Returns what `call` does; counts also where it throws.
  template <typename Call>
  decltype(auto) measure(Phase phase, const Call& call) {
    const Measurement measurement(*this, phase);
    return call();
  }

  /// The last `seconds` of what was measured last were another phase.
  void split_last(Phase phase, double seconds);

  /// Ends the step and returns its spans in order, valid until the next one ends. What is measured
  /// from then on belongs to the next step.
  std::span<const PhaseSpan> end_step();

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
