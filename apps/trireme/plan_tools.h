// SPDX-License-Identifier: Apache-2.0
// The task of `trireme plan`: its parsed form and its execution.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::apps {

/// A parsed command line.
struct PlanTask {
  std::string model;                        ///< family of models
  std::vector<std::string> model_settings;  ///< settings of the model, such as `layers=96`
  std::int64_t ranks = 8;
  std::string cluster = "a100-80";  ///< the name of a known description, or a file
  std::int64_t rows = 1;            ///< of a step, over all ranks and micro-batches
  std::string dtype = "bfloat16";   ///< of parameters and activations
  std::string elements = "eager";   ///< how operators on elements run: predict::Elements
  std::string optimizer = "adam";
  std::vector<std::string> plan_settings;  ///< settings that all plans have in common
  std::vector<std::string> constraints;    ///< what the search may not change
  std::vector<std::string> why_not;        ///< further constraints, each compared with the result
  double seconds = 10;                     ///< time after which the best plan so far is taken
  bool takes_megatron_layouts = false;     ///< instead of searching for layouts
  bool is_loop = false;                    ///< the training is a loop that calls backward itself
  std::string output;                      ///< file for the plan as TOML; empty: none
  bool as_json = false;
};

/// Executes a task, prints its result and returns the exit code: 1 if no plan fits into the memory
/// of the devices. Throws Error.
int do_plan_task(const PlanTask& task);

}  // namespace trireme::apps
