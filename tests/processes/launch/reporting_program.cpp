// SPDX-License-Identifier: Apache-2.0
// Reports steps as a training does, without any.
//
//   reporting_program <steps> <ms of a step> [<slow rank> <ms of its own time>]
//
// All ranks take the same time, as in a training; the slow rank says that more of it is its own.
#include <trireme/base/environment.h>
#include <trireme/base/step_progress.h>
#include <trireme/base/text.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <thread>

int main(int count, char** arguments) {
  const std::span<char*> words(arguments, static_cast<std::size_t>(count));
  const auto number = [&](std::size_t index) {
    return index < words.size() ? trireme::parse_number<std::int64_t>(words[index]).value_or(-1)
                                : -1;
  };
  const auto environment = trireme::Environment::of_process();
  const auto rank = environment.find_integer("RANK", 0, 1000).value_or(0);
  const std::int64_t steps = number(1);
  const std::int64_t milliseconds = number(2);
  const std::int64_t own = rank == number(3) ? number(4) : 1;
  for (std::int64_t step = 1; step <= steps; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    trireme::report_step({.step = step,
                          .of_steps = steps,
                          .epoch = 1,
                          .samples = 10,
                          .tokens = 1000,
                          .own_seconds = static_cast<double>(own) / 1000});
  }
  std::printf("rank %d has reported %d steps\n", static_cast<int>(rank), static_cast<int>(steps));
  return 0;
}
