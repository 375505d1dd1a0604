// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/predict_tools.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/base/warning.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/plan/plan_config.h>
#include <trireme/predict/faults.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/predict/predict.h>
#include <trireme/predict/simulated_step.h>
#include <trireme/tensor/expert_axis.h>

#include <ATen/Parallel.h>
#include <apps/trireme/predict_model.h>
#include <apps/trireme/predict_validation.h>
#include <apps/trireme/prediction_options.h>

#include <algorithm>
#include <iostream>
#include <optional>

namespace trireme::apps {
namespace {

// Returns the layouts of a model for the axes of a plan that names none.
ParameterLayouts layouts_for(const std::vector<MeshAxis>& mesh, const PredictedModel& model) {
  const auto has_axis = [&](const char* name) {
    return std::ranges::find(mesh, name, &MeshAxis::name) != mesh.end();
  };
  return join({has_axis(kExpertAxis) ? expert_layouts(*model.module) : ParameterLayouts{},
               has_axis("tensor") ? model.tensor_layouts : ParameterLayouts{}});
}

Plan read_plan(const PredictTask& task, const PredictedModel& model) {
  PlanSettings settings;
  config::Configuration configuration(settings);
  if (!task.plan_file.empty()) configuration.read_file(task.plan_file);
  for (const std::string& assignment : task.plan_settings) configuration.set(assignment);
  Plan& plan = settings.plan;
  if (plan.mesh.empty()) plan.mesh = {{kDataAxis, static_cast<int>(task.ranks)}};
  if (plan.layouts.empty()) plan.layouts = layouts_for(plan.mesh, model);
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : plan.mesh) ranks *= axis.size;
  if (ranks != task.ranks) {
    throw ConfigError(
        join_message("the plan's mesh has ", ranks, " ranks, and --ranks is ", task.ranks),
        "give as many ranks as the sizes of the mesh multiply to");
  }
  return plan;
}

StepRecord record_model(const PredictTask& task, const cluster::Cluster& cluster) {
  const PredictedModel model =
      make_predicted_model(task.model, task.model_settings, task.rows, dtype_of(task.dtype));
  StepRecord record{.plan = read_plan(task, model)};
  record.module = record_module(
      *model.module, record.plan, [&] { return model.forward(model.inputs).front(); }, &cluster);
  return record;
}

// Returns the optimizer whose measured times fit best to one with so many numbers for each one of a
// parameter.
predict::Optimizer optimizer_with(double numbers) {
  if (numbers < 1) return predict::Optimizer::kSgd;
  return numbers < 2 ? predict::Optimizer::kMomentum : predict::Optimizer::kAdam;
}

predict::TrainingOptions training_options(const PredictTask& task,
                                          const std::optional<OptimizerRecord>& recorded) {
  if (!recorded) {
    return {.optimizer = optimizer_of(task.optimizer), .replays_allocator = true};
  }
  return {.optimizer = optimizer_with(recorded->state_bytes),
          .optimizer_state_bytes = recorded->state_bytes,
          .optimizer_kernels = recorded->kernels,
          .replays_allocator = true};
}

// Returns nothing if failures were not asked for, and the description says too little of them.
std::optional<predict::FaultPrediction> faults_of(const FaultSettings& given,
                                                  const predict::Prediction& prediction,
                                                  const cluster::Cluster& cluster) {
  constexpr double kSecondsPerHour = 3600;
  predict::FaultOptions options = predict::fault_options(prediction, cluster);
  const bool knows_failures = given.host_failure_hours || options.host_failure_seconds > 0;
  const bool knows_saving = given.save_seconds || prediction.checkpoint_seconds > 0;
  if (!given.is_given() && !(knows_failures && knows_saving)) return {};
  if (!knows_failures) {
    throw ConfigError(
        join_message("what failures cost is not known: no host of cluster ", cluster.name,
                     " has failure_hours"),
        "give --host-failure-hours, or failure_hours in [[hosts]] of the description");
  }
  if (!knows_saving) {
    throw ConfigError(
        join_message("what failures cost is not known: the hosts of cluster ", cluster.name,
                     " have no disk_gb_per_s, so the time to save a checkpoint is unknown"),
        "give --save-seconds, or disk_gb_per_s in [[hosts]] of the description");
  }
  if (given.host_failure_hours) {
    options.host_failure_seconds = *given.host_failure_hours * kSecondsPerHour;
  }
  options.save_seconds = given.save_seconds.value_or(options.save_seconds);
  options.load_seconds = given.load_seconds.value_or(options.load_seconds);
  options.detect_seconds = given.detect_seconds.value_or(options.detect_seconds);
  options.restart_seconds = given.restart_seconds.value_or(options.restart_seconds);
  options.interval_seconds = given.interval_seconds.value_or(options.interval_seconds);
  return predict::predict_faults(options);
}

void write_text(const std::string& file, const std::string& text) {
  try {
    AtomicFile written(file);
    written.write(text);
    written.commit();
  } catch (const CheckpointError& error) {  // AtomicFile throws this; the text contains a hint.
    throw ConfigError(error.what(), "");
  }
}

}  // namespace

int do_predict_task(const PredictTask& task) {
  // Small tensors that forward computes, such as tables of positions, are not worth threads.
  at::set_num_threads(1);
  if (!task.validate.empty()) return validate_predictions(task.validate, task.fit);
  const cluster::Cluster cluster = cluster::read_cluster(task.cluster);
  const auto [plan, module, optimizer] =
      task.record_file.empty() ? record_model(task, cluster) : read_step_record(task.record_file);
  if (!task.record_file.empty() && !optimizer) {
    warn("the program asked for a value, such as that of its loss, before its optimizer stepped; ",
         task.optimizer, " is assumed (--optimizer)");
  }
  const predict::TrainingOptions options = training_options(task, optimizer);
  const ModuleRecord record = predict::fuse_elements(module, predict::elements_of(task.elements));
  predict::Prediction prediction;
  if (task.trace_file.empty() && task.picture_file.empty()) {
    prediction = predict::predict(record, plan, cluster, options);
  } else {
    const auto step = predict::simulate_step(record, plan, cluster, options);
    if (!task.trace_file.empty()) write_text(task.trace_file, to_trace(step));
    if (!task.picture_file.empty()) write_text(task.picture_file, to_svg(step));
    prediction = step.prediction;
  }
  prediction.faults = faults_of(task.faults, prediction, cluster);
  std::cout << (task.as_json ? to_json(prediction) : to_string(prediction));
  return prediction.fits() ? 0 : 1;
}

}  // namespace trireme::apps
