// SPDX-License-Identifier: Apache-2.0
// Run folders for tests, as trainings write them.
#pragma once

#include <trireme/report/jsonl_file.h>
#include <trireme/report/page/run_log.h>

#include <tests/temporary_folder.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::report::test {

inline std::string file_of(int rank) { return "events-rank" + std::to_string(rank) + ".jsonl"; }

inline RunRecord run_record(int rank, int world_size, std::int64_t global_step = 0) {
  return {.moment = {.time = 1.7e9 + static_cast<double>(global_step),
                     .epoch = 0,
                     .global_step = global_step},
          .rank = rank,
          .world_size = world_size,
          .epochs = 2,
          .steps_in_epoch = 50,
          .settings = {{"plan.zero_level", "0"}},
          .environment = {{"host", "node" + std::to_string(rank / 2)}, {"trireme", "0.1.0"}}};
}

inline StepRecord step_record(int rank, std::int64_t global_step) {
  const auto step = static_cast<double>(global_step);
  return {.moment = {.time = 1.7e9 + step,
                     .epoch = (global_step - 1) / 50 + 1,
                     .global_step = global_step},
          .step = (global_step - 1) % 50 + 1,
          .steps = 1,
          .loss = 2 * std::exp(-step / 40) + 0.1 + 0.01 * rank,
          .samples = 32,
          .seconds = {.data = 0.001,
                      .forward = 0.010,
                      .backward = 0.020,
                      .communication = 0.004 + 0.001 * rank,
                      .optimizer = 0.003,
                      .callbacks = 0.0005,
                      .total = 0.040 + 0.001 * rank},
          .learning_rate = 0.1,
          .gradient_norm = 1 / step,
          .memory_bytes = std::int64_t{300} << 20};
}

/// Writes `steps` steps of each rank, with an evaluation after every 50, to a folder.
inline void write_run(const std::filesystem::path& folder, int ranks, std::int64_t steps) {
  for (int rank = 0; rank < ranks; ++rank) {
    JsonlFile file(folder / file_of(rank));
    file.write(run_record(rank, ranks));
    for (std::int64_t step = 1; step <= steps; ++step) {
      file.write(step_record(rank, step));
      if (step % 50 != 0) continue;
      const Moment moment = {
          .time = 1.7e9 + static_cast<double>(step), .epoch = step / 50, .global_step = step};
      file.write(
          EpochRecord{.moment = moment, .loss = 1.0 / static_cast<double>(step), .samples = 3200});
      file.write(EvaluationRecord{.moment = moment, .loss = 0.5, .accuracy = 0.8, .samples = 100});
    }
    file.write(
        EndRecord{.moment = {.time = 1.7e9, .epoch = 2, .global_step = steps}, .seconds = 4});
  }
}

}  // namespace trireme::report::test
