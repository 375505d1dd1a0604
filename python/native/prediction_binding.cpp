// SPDX-License-Identifier: Apache-2.0
#include <python/native/prediction_binding.h>

#include <trireme/base/config/fields.h>
#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/predict/predictable_plan.h>
#include <trireme/predict/prediction.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/fake_tensors.h>
#include <trireme/tensor/layout.h>

#include <pybind11/stl.h>
#include <python/native/config_values.h>
#include <python/native/module_of_tensors.h>
#include <python/native/python_forward.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace trireme::python {
namespace {

using predict::Prediction;
using predict::RankMemoryPrediction;
using predict::StepParts;

predict::Optimizer optimizer_of(const std::string& name) {
  if (name == "sgd") return predict::Optimizer::kSgd;
  if (name == "momentum") return predict::Optimizer::kMomentum;
  if (name == "adam") return predict::Optimizer::kAdam;
  const std::string nearest = config::did_you_mean(name, {"sgd", "momentum", "adam"});
  throw UsageError(join_message("the optimizer is '", name, "', expected sgd, momentum or adam"),
                   nearest.empty() ? "name the one that keeps as much state" : nearest);
}

// As a search gives inputs to forward: some operators, such as an LSTM, want them on the device of
// the parameters, and these are distributed tensors without values in a dry run.
at::Tensor on_mesh_of(const torch::nn::Module& module, const at::Tensor& input) {
  const auto parameters = module.parameters();
  if (parameters.empty() || !has_layout(parameters.front()) || input.dim() == 0) return input;
  return tensor::fake_tensor(input, Layout::replicated(layout_of(parameters.front()).mesh()));
}

Prediction predict_module(const ModuleTensors& tensors, const py::function& forward,
                          const std::vector<at::Tensor>& inputs, const Plan& plan,
                          const std::string& cluster_name, const std::string& elements,
                          const py::dict& options) {
  const auto module = module_of_tensors(tensors);
  predict::TrainingOptions training = training_options(options);
  training.replays_allocator = true;
  return without_gil([&] {
    predict::check_predictable(plan);
    const cluster::Cluster cluster = cluster::read_cluster(cluster_name);
    const predict::Elements fusion = predict::elements_of(elements);
    const graph::Forward run = forward_of(forward);
    const auto loss = [&] {
      std::vector<at::Tensor> on_mesh;
      for (const at::Tensor& input : inputs) on_mesh.push_back(on_mesh_of(*module, input));
      return run(on_mesh).front();
    };
    ModuleRecord record = record_module(module, plan, loss, &cluster);
    return predict::predict(predict::fuse_elements(std::move(record), fusion), plan, cluster,
                            training);
  });
}

void bind_parts(py::module_& module) {
  py::class_<StepParts>(module, "StepParts")
      .def_readonly("compute", &StepParts::compute)
      .def_readonly("recomputation", &StepParts::recomputation)
      .def_readonly("layouts", &StepParts::layouts)
      .def_readonly("data_exchange", &StepParts::data_exchange)
      .def_readonly("pipeline", &StepParts::pipeline)
      .def_readonly("optimizer", &StepParts::optimizer);
  py::class_<RankMemoryPrediction>(module, "RankMemory")
      .def_readonly("parameters", &RankMemoryPrediction::parameters)
      .def_readonly("gradients", &RankMemoryPrediction::gradients)
      .def_readonly("optimizer", &RankMemoryPrediction::optimizer)
      .def_readonly("buckets", &RankMemoryPrediction::buckets)
      .def_readonly("activations", &RankMemoryPrediction::activations)
      .def_readonly("temporary", &RankMemoryPrediction::temporary)
      .def_readonly("inputs", &RankMemoryPrediction::inputs)
      .def_readonly("lost", &RankMemoryPrediction::lost)
      .def_readonly("peak_module", &RankMemoryPrediction::peak_module)
      .def_readonly("activations_by_module", &RankMemoryPrediction::activations_by_module)
      .def_readonly("host", &RankMemoryPrediction::host)
      .def_property_readonly("total", &RankMemoryPrediction::total);
}

}  // namespace

predict::TrainingOptions training_options(const py::dict& arguments) {
  predict::TrainingOptions options;
  std::string optimizer = "adam";
  config::Fields fields;
  fields.add("optimizer", optimizer, "sgd, momentum or adam");
  fields.add("has_master_weights", options.has_master_weights,
             "half-precision parameters have fp32 copies in the optimizer");
  fields.add("has_float32_gradients", options.has_float32_gradients,
             "gradients of half-precision parameters are accumulated in fp32");
  fields
      .add("optimizer_state_bytes", options.optimizer_state_bytes,
           "bytes of state for each byte of parameters")
      .at_least(0);
  fields
      .add("optimizer_kernels", options.optimizer_kernels,
           "kernels that the optimizer starts for each parameter")
      .at_least(0);
  fields.add("reduces_each_micro_batch", options.reduces_each_micro_batch,
             "gradients are reduced after each micro-batch");
  fields.add("gathers_ahead_in_backward", options.gathers_ahead_in_backward,
             "backward gathers parameters ahead of their use");
  fields.add("repeats_whole_regions", options.repeats_whole_regions,
             "recomputation repeats whole modules");
  fields.add("allows_tf32", options.allows_tf32, "products of fp32 tensors use TF32");
  set_fields(fields, arguments, "options");
  options.optimizer = optimizer_of(optimizer);
  return options;
}

void bind_prediction(py::module_& module) {
  bind_parts(module);
  py::class_<Prediction>(module, "Prediction", "The time and memory of a training step.")
      .def_readonly("cluster", &Prediction::cluster)
      .def_readonly("ranks", &Prediction::ranks)
      .def_readonly("step_seconds", &Prediction::step_seconds)
      .def_readonly("parts", &Prediction::parts)
      .def_readonly("flops_per_rank", &Prediction::flops_per_rank)
      .def_readonly("repeated_flops", &Prediction::repeated_flops)
      .def_readonly("utilization", &Prediction::utilization)
      .def_readonly("parameters", &Prediction::parameters)
      .def_readonly("memory", &Prediction::memory)
      .def_readonly("device_memory", &Prediction::device_memory)
      .def_readonly("checkpoint_bytes", &Prediction::checkpoint_bytes)
      .def_readonly("checkpoint_seconds", &Prediction::checkpoint_seconds)
      .def_readonly("stage_seconds", &Prediction::stage_seconds)
      .def_property_readonly("peak_memory", &Prediction::peak_memory)
      .def_property_readonly("fits", &Prediction::fits)
      .def("to_json", [](const Prediction& self) { return to_json(self); })
      .def("to_dict",
           [](const Prediction& self) {
             return py::module_::import("json").attr("loads")(to_json(self));
           })
      .def("__str__", [](const Prediction& self) { return to_string(self); });
  module.def("predict", &predict_module, py::arg("tensors"), py::arg("forward"), py::arg("inputs"),
             py::arg("plan"), py::arg("cluster"), py::arg("elements"), py::arg("options"));
}

}  // namespace trireme::python
