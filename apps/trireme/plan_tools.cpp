// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/plan_tools.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/plan/plan_config.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/search/search.h>

#include <ATen/Parallel.h>
#include <apps/trireme/predict_model.h>
#include <apps/trireme/prediction_options.h>

#include <iostream>

namespace trireme::apps {
namespace {

Plan base_plan(const PlanTask& task) {
  PlanSettings settings;
  config::Configuration configuration(settings);
  for (const std::string& assignment : task.plan_settings) configuration.set(assignment);
  if (settings.plan.mesh.empty() && settings.plan.layouts.empty()) return settings.plan;
  throw ConfigError("--plan-set gives a mesh or layouts, which the search finds",
                    "give sizes of axes as constraints, such as --with tensor=4");
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
  const cluster::Cluster cluster = cluster::read_cluster(task.cluster);
  const PredictedModel model =
      make_predicted_model(task.model, task.model_settings, 1, dtype_of(task.dtype));
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
