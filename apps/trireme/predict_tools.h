// SPDX-License-Identifier: Apache-2.0
// The task of `trireme predict`: its parsed form and its execution.
#pragma once

#include <apps/trireme/predict_faults.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::apps {

/// A parsed command line.
struct PredictTask {
  /// The family of models: `gpt`.
  std::string model;
  /// Settings of the model, such as `layers=96`.
  std::vector<std::string> model_settings;
  /// The record of a program's step (parallel/record/predicted_step.h), in place of a model; empty
  /// for none. It holds the plan.
  std::string record_file;
  /// The number of ranks.
  std::int64_t ranks = 8;
  /// The name of a known description, or a file.
  std::string cluster = "a100-80";
  /// A plan as TOML; empty for none.
  std::string plan_file;
  /// Settings of the plan, applied after the file.
  std::vector<std::string> plan_settings;
  /// The rows of a micro-batch on each rank along data.
  std::int64_t rows = 1;
  /// The dtype of parameters and activations.
  std::string dtype = "bfloat16";
  /// The optimizer.
  std::string elements = "eager";  ///< how operators on elements run: predict::Elements
  std::string optimizer = "adam";
  /// What is known about failures.
  FaultSettings faults;
  /// The file for a trace of the simulated step; empty: none.
  std::string trace_file;
  /// The file for a picture of the memory over the step; empty: none.
  std::string picture_file;
  /// Prints JSON instead of a table.
  bool as_json = false;
  /// Files with measurements.
  std::vector<std::string> validate;
  /// The device kind to fit; empty for none.
  std::string fit;
};

/// Executes a task, prints its result and returns the exit code: 1 if the plan does not fit into
/// the memory of the devices. Throws Error.
int do_predict_task(const PredictTask& task);

}  // namespace trireme::apps
