// SPDX-License-Identifier: Apache-2.0
// Learning rates that fall when a score no longer improves, like PyTorch's ReduceLROnPlateau.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

/// The parameters of Plateau.
struct PlateauOptions {
  /// True if higher scores are better.
  bool is_higher_better = false;
  /// The factor that a rate is multiplied by when it falls.
  double factor = 0.1;
  /// The number of consecutive scores without an improvement that are tolerated.
  std::int64_t patience = 10;
  /// The amount by which an improvement must be better than the best score. It is a share of the
  /// best score, or an absolute amount if `is_absolute` is set.
  double threshold = 1e-4;
  /// True if `threshold` is an absolute amount.
  bool is_absolute = false;
  /// The number of scores after a fall that are ignored.
  std::int64_t cooldown = 0;
  /// The smallest rate.
  double least_rate = 0;
  /// A rate stays as it is if it would fall by this amount or less.
  double least_change = 1e-8;
};

/// Observes a score and decides when rates fall. A value type; not thread-safe.
///
///     if (plateau.observe(loss)) rate = plateau.lowered(rate);
class Plateau {
 public:
  /// Throws UsageError for a factor outside [0, 1), and for other options that are negative or not
  /// finite.
  explicit Plateau(const PlateauOptions& options = {});

  /// Records a score and returns true if rates must fall now. NaN is not an improvement.
  bool observe(double score);

  /// Returns the rate after a fall.
  double lowered(double rate) const;

  /// Returns the best score so far, which is infinite before the first one.
  double best() const { return best_; }

  /// Returns the observed state as a text for restore().
  std::string state() const;
  /// Restores a state. Throws UsageError for a text that state() has not returned.
  void restore(const std::string& state);

 private:
  bool is_better(double score) const;

  PlateauOptions options_;
  double best_;
  std::int64_t num_bad_ = 0;   // consecutive scores without an improvement
  std::int64_t cool_for_ = 0;  // scores that are still ignored
};

}  // namespace trireme
