// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/predict_tools.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/plan/plan_config.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/predict/predict.h>

#include <apps/trireme/predict_model.h>
#include <apps/trireme/predict_validation.h>

#include <algorithm>
#include <iostream>

namespace trireme::apps {
namespace {

struct PlanSettings {
  Plan plan;
  void fields(config::Fields& fields) { describe(fields, plan); }
};

Plan read_plan(const PredictTask& task, const ParameterLayouts& tensor_layouts) {
  PlanSettings settings;
  config::Configuration configuration(settings);
  if (!task.plan_file.empty()) configuration.read_file(task.plan_file);
  for (const std::string& assignment : task.plan_settings) configuration.set(assignment);
  Plan& plan = settings.plan;
  if (plan.mesh.empty()) plan.mesh = {{kDataAxis, static_cast<int>(task.ranks)}};
  const bool has_tensor_axis =
      std::ranges::find(plan.mesh, "tensor", &MeshAxis::name) != plan.mesh.end();
  if (plan.layouts.empty() && has_tensor_axis) plan.layouts = tensor_layouts;
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : plan.mesh) ranks *= axis.size;
  if (ranks != task.ranks) {
    throw ConfigError(
        join_message("the plan's mesh has ", ranks, " ranks, and --ranks is ", task.ranks),
        "give as many ranks as the sizes of the mesh multiply to");
  }
  return plan;
}

predict::Optimizer optimizer_of(const std::string& name) {
  if (name == "sgd") return predict::Optimizer::kSgd;
  if (name == "momentum") return predict::Optimizer::kMomentum;
  return predict::Optimizer::kAdam;
}

predict::Elements elements_of(const std::string& name) {
  if (name == "eager") return predict::Elements::kEager;
  return name == "fused" ? predict::Elements::kFused : predict::Elements::kCompiled;
}

}  // namespace

int do_predict_task(const PredictTask& task) {
  if (!task.validate.empty()) return validate_predictions(task.validate, task.fit);
  const PredictedModel model =
      make_predicted_model(task.model, task.model_settings, task.rows, dtype_of(task.dtype));
  const Plan plan = read_plan(task, model.tensor_layouts);
  const predict::ModuleRecord record = predict::fuse_elements(
      predict::record_module(*model.module, plan, model.forward), elements_of(task.elements));
  const predict::Prediction prediction =
      predict::predict(record, plan, cluster::read_cluster(task.cluster),
                       {.optimizer = optimizer_of(task.optimizer)});
  std::cout << (task.as_json ? to_json(prediction) : to_string(prediction));
  return prediction.fits() ? 0 : 1;
}

}  // namespace trireme::apps
