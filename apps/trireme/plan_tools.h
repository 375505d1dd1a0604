// SPDX-License-Identifier: Apache-2.0
// The task of `trireme plan`: its parsed form and its execution.
#pragma once

#include <trireme/search/plan_request.h>

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
  std::string optimizer = "adam";
  search::PlanRequest request;
  bool takes_megatron_layouts = false;  ///< instead of searching for layouts
  bool is_loop = false;                 ///< the training is a loop that calls backward itself
  std::string output;                   ///< file for the plan as TOML; empty: none
};

/// Executes a task, prints its result and returns the exit code: 1 if no plan fits into the memory
/// of the devices. Throws Error.
int do_plan_task(const PlanTask& task);

}  // namespace trireme::apps
