// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/plan_tools.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/plan/plan_config.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/search/automatic_plan.h>
#include <trireme/search/search.h>

#include <ATen/Parallel.h>
#include <apps/trireme/predict_model.h>
#include <apps/trireme/prediction_options.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <utility>

namespace trireme::apps {
namespace {

Plan base_plan(const PlanTask& task) {
  PlanSettings settings;
  config::Configuration configuration(settings);
  for (const std::string& assignment : task.plan_settings) configuration.set(assignment);
  const Plan& plan = settings.plan;
  if (plan.mode == PlanMode::kAutomatic || !plan.constraints.empty()) {
    throw ConfigError("--plan-set gives mode or constraints, which are for programs",
                      "leave it out; --with gives constraints of the search");
  }
  if (const std::string name = search::setting_of_search(plan); !name.empty()) {
    throw ConfigError(join_message("--plan-set gives ", name, ", which the search finds"),
                      "give a constraint, such as --with tensor=4, --with zero_level=1 or "
                      "--with memory_gib=40");
  }
  return plan;
}

// Refuses a file that cannot be written before the search, which may take long.
void check_output(const std::string& file) {
  if (file.empty()) return;
  const auto folder = std::filesystem::absolute(file).parent_path();
  if (std::filesystem::is_directory(folder) && ::access(folder.c_str(), W_OK) == 0) return;
  throw ConfigError(
      join_message("--save ", file, ": ", folder.string(), " is no folder that can be written to"),
      "make the folder, or give another file");
}

search::Constraints constraints_of(const std::vector<std::string>& texts) {
  search::Constraints constraints;
  for (const std::string& text : texts) search::add_constraint(constraints, text);
  return constraints;
}

// Compares the result with the best plan under a further constraint. Says so if there is none.
template <typename Find>
std::string why_not(const std::string& wish, const search::SearchResult& result, const Find& find,
                    search::Constraints constraints) {
  try {
    search::add_constraint(constraints, wish);
    return compare(result, find(constraints), wish);
  } catch (const Error& error) {  // The constraint contradicts another, or leaves no plan.
    return join_message("why not ", wish, ":\n  ", error.what(), '\n');
  }
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
  const predict::Elements elements = elements_of(task.elements);
  const search::Training training = {
      .module = model.module,
      .forward = model.forward,
      .inputs = model.inputs,
      .rows = task.rows,
      .tensor_layouts = task.takes_megatron_layouts ? model.tensor_layouts : ParameterLayouts(),
      .options = {.optimizer = optimizer_of(task.optimizer)},
      .base = base_plan(task),
      .entry = task.is_loop ? PlanEntry::kParallelize : PlanEntry::kTrainingStep,
      .transform = [&](const ModuleRecord& record) {
        return predict::fuse_elements(record, elements);
      }};
  const search::SearchOptions options = {.seconds = task.seconds};
  const search::Constraints constraints = constraints_of(task.constraints);
  for (const std::string& wish : task.why_not) constraints_of({wish});  // refuses it now
  const search::SearchResult result =
      search::find_plan(training, task.ranks, cluster, constraints, options);
  std::cout << (task.as_json ? to_json(result) : to_string(result));
  for (const std::string& wish : task.why_not) {
    std::cout << why_not(
        wish, result,
        [&](const search::Constraints& further) {
          return search::find_plan(training, task.ranks, cluster, further, options);
        },
        constraints);
  }
  if (result.best.empty()) return 1;
  if (!task.output.empty()) {
    try {
      write_plan(task.output, result.fastest().plan);
    } catch (const CheckpointError& error) {  // Files are written so; the text contains a hint.
      throw ConfigError(error.what(), "");
    }
  }
  return 0;
}

}  // namespace trireme::apps
