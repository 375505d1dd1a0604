// SPDX-License-Identifier: Apache-2.0
// Prints the rates of schedules as JSON, for schedules_parity.py, and those that plateaus make of
// the scores that it is given.
#include <trireme/optim/learning_rate_schedule.h>
#include <trireme/optim/plateau.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

using trireme::LearningRateSchedule;
using trireme::Plateau;
using trireme::PlateauOptions;

namespace {

// The rate after each score.
std::vector<double> rates_of(const PlateauOptions& options, double rate,
                             const std::vector<double>& scores) {
  Plateau plateau(options);
  std::vector<double> rates;
  for (const double score : scores) {
    if (plateau.observe(score)) rate = plateau.lowered(rate);
    rates.push_back(rate);
  }
  return rates;
}

}  // namespace

int main() {
  constexpr std::int64_t kSteps = 40;
  const std::map<std::string, LearningRateSchedule> schedules = {
      {"constant", LearningRateSchedule::constant(0.3)},
      {"linear", LearningRateSchedule::linear(0.2, 0.05, 25)},
      {"steps", LearningRateSchedule::steps(0.5, 7, 0.3)},
      {"milestones", LearningRateSchedule::milestones(0.5, {3, 11, 11, 30}, 0.2)},
      {"exponential", LearningRateSchedule::exponential(0.5, 0.9)},
      {"polynomial", LearningRateSchedule::polynomial(0.5, 20, 2)},
      {"cosine", LearningRateSchedule::cosine(0.5, kSteps - 1, 0.01)},
      {"one_cycle", LearningRateSchedule::one_cycle(0.5, kSteps)},
      {"one_cycle_other", LearningRateSchedule::one_cycle(
                              0.5, kSteps, {.up = 0.45, .start_divisor = 10, .end_divisor = 100})},
      {"then",
       LearningRateSchedule::linear(0.1, 0.5, 10).then(10, LearningRateSchedule::cosine(0.5, 30))},
  };
  nlohmann::json all;
  for (const auto& [name, schedule] : schedules) {
    std::vector<double> rates;
    for (std::int64_t step = 1; step <= kSteps; ++step) rates.push_back(schedule(step));
    all[name] = rates;
  }
  const std::map<std::string, PlateauOptions> plateaus = {
      {"plateau", {.patience = 3}},
      {"plateau_highest", {.is_higher_better = true, .factor = 0.5, .patience = 2}},
      {"plateau_absolute", {.patience = 1, .threshold = 0.05, .is_absolute = true}},
      {"plateau_highest_absolute",
       {.is_higher_better = true, .patience = 1, .threshold = 0.05, .is_absolute = true}},
      {"plateau_cooldown", {.factor = 0.7, .patience = 0, .threshold = 0.1, .cooldown = 4}},
      {"plateau_least", {.patience = 0, .threshold = 0.3, .least_rate = 0.003}},
      {"plateau_least_change",
       {.factor = 0.9, .patience = 0, .threshold = 0.3, .least_change = 0.02}},
  };
  const auto scores = nlohmann::json::parse(std::cin).get<std::vector<double>>();
  for (const auto& [name, options] : plateaus) all[name] = rates_of(options, 0.5, scores);
  std::cout << all.dump() << '\n';
}
