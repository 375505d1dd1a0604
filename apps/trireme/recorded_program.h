// SPDX-License-Identifier: Apache-2.0
// Runs a program up to its first training step, which it records.
#pragma once

#include <apps/trireme/predict_tools.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::apps {

/// One run of a program, and the file with the record of its step, which is removed with the
/// object.
class RecordedProgram {
 public:
  /// Runs the program as rank 0 of a world of `task.ranks` assumed ranks. Its output is shown only
  /// if it fails. Blocking. Call it on the main thread, before there are others (launch::run).
  /// Throws ConfigError for a cluster or a plan that cannot be read, a program that cannot be
  /// started, and one that ends without a training step.
  RecordedProgram(const PredictTask& task, const std::vector<std::string>& program);
  ~RecordedProgram();
  RecordedProgram(const RecordedProgram&) = delete;
  RecordedProgram& operator=(const RecordedProgram&) = delete;

  /// Returns the exit code of the program. If it is not 0, there is no record.
  int exit_code() const noexcept { return exit_code_; }
  /// Returns the record (parallel/record/step_record.h).
  std::filesystem::path file() const { return folder_ / "step"; }

 private:
  std::filesystem::path folder_;
  int exit_code_ = 0;
};

}  // namespace trireme::apps
