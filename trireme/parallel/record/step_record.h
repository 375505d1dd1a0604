// SPDX-License-Identifier: Apache-2.0
// The record of a program's training step, as the program hands it to `trireme predict`.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>

#include <filesystem>
#include <optional>

namespace trireme {

/// What one step of an optimizer did.
struct OptimizerRecord {
  /// Bytes of state that it keeps for each byte of parameters.
  double state_bytes = 0;
  /// Kernels that it starts for each parameter.
  double kernels = 0;
};

/// A training step of a program.
struct StepRecord {
  Plan plan{};                                 ///< that the step would be run with
  ModuleRecord module{};                       ///< forward and backward of one micro-batch
  std::optional<OptimizerRecord> optimizer{};  ///< nothing if the program did not come to it
};

/// Writes a record to a file, as JSON of no documented format: both sides are of one version.
/// Throws CheckpointError if the file system refuses.
void write_step_record(const StepRecord& record, const std::filesystem::path& file);

/// Reads what write_step_record() wrote. Throws DataError if it is something else.
StepRecord read_step_record(const std::filesystem::path& file);

}  // namespace trireme
