// SPDX-License-Identifier: Apache-2.0
// Runs a program up to its first training step, which it records.
#pragma once

#include <apps/trireme/predict_tools.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::apps {

/// What a program is run for.
struct RecordedRun {
  std::int64_t ranks = 1;  ///< assumed ranks of the world
  std::string cluster;     ///< the name of a description, or a file
  /// Writes the request to the folder.
  std::function<void(const std::filesystem::path& folder)> write_request;
  std::string answer_file;  ///< the file that the program writes to the folder
  std::string hint;         ///< for a program that ends without writing it
};

/// Returns what `trireme predict` runs a program for: the record of its step
/// (parallel/record/predicted_step.h).
RecordedRun step_of_program(const PredictTask& task);

/// One run of a program, and the folder with its answer, which is removed with the object.
class RecordedProgram {
 public:
  /// Runs the program as rank 0 of a world of `run.ranks` assumed ranks. Its output is shown only
  /// if it fails. Blocking. Call it on the main thread, before there are others (launch::run).
  /// Throws ConfigError for a cluster or a request that cannot be read, a program that cannot be
  /// started, and one that ends without a training step.
  RecordedProgram(const RecordedRun& run, const std::vector<std::string>& program);
  ~RecordedProgram();
  RecordedProgram(const RecordedProgram&) = delete;
  RecordedProgram& operator=(const RecordedProgram&) = delete;

  /// Returns the exit code of the program. If it is not 0, there is no answer.
  int exit_code() const noexcept { return exit_code_; }
  /// Returns the folder with the answer.
  const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  std::filesystem::path folder_;
  int exit_code_ = 0;
};

}  // namespace trireme::apps
