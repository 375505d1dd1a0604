// SPDX-License-Identifier: Apache-2.0
// Learning rates that fall when a score no longer improves: torch's ReduceLROnPlateau.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace trireme {

struct PlateauOptions {
  bool is_higher_better = false;
  /// A rate is multiplied by this,
  double factor = 0.1;
  /// after more than this many scores in a row without an improvement.
  std::int64_t patience = 10;
  /// An improvement is better than the best by this, as a share of the best or, if `is_absolute`,
  /// as it is.
  double threshold = 1e-4;
  bool is_absolute = false;
  /// How many scores after a fall do not count.
  std::int64_t cooldown = 0;
  double least_rate = 0;
  /// A rate that would fall by no more than this stays.
  double least_change = 1e-8;
};

/// Watches a score. A value; not thread-safe.
///
///     if (plateau.observe(loss)) rate = plateau.lowered(rate);
class Plateau {
 public:
  /// Throws UsageError for a factor outside [0, 1), and for other options that are negative or not
  /// finite.
  explicit Plateau(const PlateauOptions& options = {});

  /// Takes a score and returns whether the rates are to fall now. One that is not a number is no
  /// improvement.
  bool observe(double score);

  /// Returns what a rate falls to.
  double lowered(double rate) const;

  /// Infinite before the first score.
  double best() const { return best_; }

  /// What it has seen, as a text; restore() goes on with it, and throws UsageError for another one.
  std::string state() const;
  void restore(const std::string& state);

 private:
  bool is_better(double score) const;

  PlateauOptions options_;
  double best_;
  std::int64_t num_bad_ = 0;   // scores in a row without an improvement
  std::int64_t cool_for_ = 0;  // scores that do not count any more
};

}  // namespace trireme
