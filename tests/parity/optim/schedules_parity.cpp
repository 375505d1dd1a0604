// SPDX-License-Identifier: Apache-2.0
// Prints the rates of schedules as JSON, for schedules_parity.py.
#include <trireme/optim/schedules.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

using trireme::Schedule;

int main() {
  constexpr std::int64_t kSteps = 40;
  const std::map<std::string, Schedule> schedules = {
      {"constant", Schedule::constant(0.3)},
      {"linear", Schedule::linear(0.2, 0.05, 25)},
      {"steps", Schedule::steps(0.5, 7, 0.3)},
      {"milestones", Schedule::milestones(0.5, {3, 11, 11, 30}, 0.2)},
      {"exponential", Schedule::exponential(0.5, 0.9)},
      {"polynomial", Schedule::polynomial(0.5, 20, 2)},
      {"cosine", Schedule::cosine(0.5, kSteps - 1, 0.01)},
      {"one_cycle", Schedule::one_cycle(0.5, kSteps)},
      {"one_cycle_other",
       Schedule::one_cycle(0.5, kSteps, {.up = 0.45, .start_divisor = 10, .end_divisor = 100})},
      {"then", Schedule::linear(0.1, 0.5, 10).then(10, Schedule::cosine(0.5, 30))},
  };
  nlohmann::json all;
  for (const auto& [name, schedule] : schedules) {
    std::vector<double> rates;
    for (std::int64_t step = 1; step <= kSteps; ++step) rates.push_back(schedule(step));
    all[name] = rates;
  }
  std::cout << all.dump() << '\n';
}
