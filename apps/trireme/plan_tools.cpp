// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/plan_tools.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/plan/plan_config.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/search/search.h>

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

void write_plan(const std::string& file, const Plan& plan) {
  PlanSettings settings = {.plan = plan};
  config::Configuration(settings).save(file);
}

}  // namespace

int do_plan_task(const PlanTask& task) {
  const cluster::Cluster cluster = cluster::read_cluster(task.cluster);
  const PredictedModel model =
      make_predicted_model(task.model, task.model_settings, 1, dtype_of(task.dtype));
  const predict::Elements elements = elements_of(task.elements);
  const search::Training training = {
      .module = model.module,
      .forward = model.forward,
      .inputs = model.inputs,
      .rows = task.rows,
      .tensor_layouts = model.tensor_layouts,
      .options = {.optimizer = optimizer_of(task.optimizer)},
      .base = base_plan(task),
      .entry = task.is_loop ? PlanEntry::kParallelize : PlanEntry::kTrainingStep,
      .transform = [&](const ModuleRecord& record) {
        return predict::fuse_elements(record, elements);
      }};
  const search::SearchOptions options = {.seconds = task.seconds};
  const search::Constraints constraints = constraints_of(task.constraints);
  const search::SearchResult result =
      search::find_plan(training, task.ranks, cluster, constraints, options);
  std::cout << (task.as_json ? to_json(result) : to_string(result));
  for (const std::string& wish : task.why_not) {
    search::Constraints further = constraints;
    search::add_constraint(further, wish);
    std::string text;
    try {
      text =
          compare(result, search::find_plan(training, task.ranks, cluster, further, options), wish);
    } catch (const UsageError& error) {
      text = join_message("why not ", wish, ":\n  ", error.what(), '\n');
    }
    std::cout << text;
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
