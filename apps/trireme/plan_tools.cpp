// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/plan_tools.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/plan/plan_config.h>
#include <trireme/search/plan_answer.h>

#include <ATen/Parallel.h>
#include <apps/trireme/predict_model.h>
#include <apps/trireme/prediction_options.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <utility>

namespace trireme::apps {
namespace {

// Refuses a file that cannot be written before the search, which may take long.
void check_output(const std::string& file) {
  if (file.empty()) return;
  const auto folder = std::filesystem::absolute(file).parent_path();
  if (std::filesystem::is_directory(folder) && ::access(folder.c_str(), W_OK) == 0) return;
  throw ConfigError(
      join_message("--save ", file, ": ", folder.string(), " is no folder that can be written to"),
      "make the folder, or give another file");
}

void write_plan(const std::string& file, const Plan& plan) {
  PlanSettings settings = {.plan = plan};
  config::Configuration(settings).save(file);
}

}  // namespace

int do_plan_task(const PlanTask& task) {
  // Small tensors that forward computes, such as tables of positions, are not worth threads.
  at::set_num_threads(1);
  check_output(task.output);
  const cluster::Cluster cluster = cluster::read_cluster(task.cluster);
  const PredictedModel model =
      make_predicted_model(task.model, task.model_settings, 1, dtype_of(task.dtype));
  if (task.takes_megatron_layouts && model.tensor_layouts.empty()) {
    throw ConfigError(
        join_message("--megatron: no layouts of Megatron-LM are known for ", task.model),
        "leave it out: layouts are searched for");
  }
  const search::PlanAnswer answer = search::answer(
      task.request,
      {.module = model.module,
       .forward = model.forward,
       .inputs = model.inputs,
       .rows = task.rows,
       .tensor_layouts = task.takes_megatron_layouts ? model.tensor_layouts : ParameterLayouts(),
       .options = {.optimizer = optimizer_of(task.optimizer)},
       .entry = task.is_loop ? PlanEntry::kParallelize : PlanEntry::kTrainingStep},
      task.ranks, cluster);
  std::cout << answer.text;
  if (!answer.plan) return 1;
  if (!task.output.empty()) {
    try {
      write_plan(task.output, *answer.plan);
    } catch (const CheckpointError& error) {  // Files are written so; the text contains a hint.
      throw ConfigError(error.what(), "");
    }
  }
  return 0;
}

}  // namespace trireme::apps
