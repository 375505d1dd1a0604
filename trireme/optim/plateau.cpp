// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/plateau.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>

namespace trireme {
namespace {

double worst(bool is_higher_better) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  return is_higher_better ? -kInfinite : kInfinite;
}

bool is_amount(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

Plateau::Plateau(const PlateauOptions& options)
    : options_(options), best_(worst(options.is_higher_better)) {
  const bool has_amounts = is_amount(options.threshold) && is_amount(options.least_rate) &&
                           is_amount(options.least_change);
  if (options.factor >= 0 && options.factor < 1 && options.patience >= 0 && options.cooldown >= 0 &&
      has_amounts) {
    return;
  }
  throw UsageError(
      join_message("a plateau with factor ", options.factor, ", patience ", options.patience,
                   ", threshold ", options.threshold, ", cooldown ", options.cooldown,
                   ", least rate ", options.least_rate, ", least change ", options.least_change),
      "the factor is 0 or more and less than 1, everything else finite and not below 0");
}

// Follows the arithmetic of torch.optim.lr_scheduler.ReduceLROnPlateau term by term.
bool Plateau::is_better(double score) const {
  const double margin = options_.is_higher_better ? options_.threshold : -options_.threshold;
  const double bound = options_.is_absolute ? best_ + margin : best_ * (1 + margin);
  return options_.is_higher_better ? score > bound : score < bound;
}

bool Plateau::observe(double score) {
  if (is_better(score)) {
    best_ = score;
    num_bad_ = 0;
  } else {
    ++num_bad_;
  }
  // During the cooldown, scores without an improvement do not count.
  if (cool_for_ > 0) {
    --cool_for_;
    num_bad_ = 0;
  }
  if (num_bad_ <= options_.patience) return false;
  cool_for_ = options_.cooldown;
  num_bad_ = 0;
  return true;
}

double Plateau::lowered(double rate) const {
  const double lower = std::max(rate * options_.factor, options_.least_rate);
  return rate - lower > options_.least_change ? lower : rate;
}

// A stream cannot read infinite numbers back, so a flag says if there is a best score.
std::string Plateau::state() const {
  TextWriter text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << std::isfinite(best_)
       << ' ' << (std::isfinite(best_) ? best_ : 0) << ' ' << num_bad_ << ' ' << cool_for_;
  return text.str();
}

void Plateau::restore(const std::string& state) {
  TextReader text(state);
  bool has_best = false;
  double best = 0;
  std::int64_t num_bad = 0;
  std::int64_t cool_for = 0;
  text >> has_best >> best >> num_bad >> cool_for;
  if (!text || num_bad < 0 || cool_for < 0) {
    throw UsageError(join_message("a plateau cannot go on from '", state, "'"),
                     "give what state() returned");
  }
  best_ = has_best ? best : worst(options_.is_higher_better);
  num_bad_ = num_bad;
  cool_for_ = cool_for;
}

}  // namespace trireme
