// SPDX-License-Identifier: Apache-2.0
#include <python/native/search_binding.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/plan/plan.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/search/automatic_plan.h>
#include <trireme/search/constraints.h>
#include <trireme/search/search.h>
#include <trireme/search/training/training.h>

#include <pybind11/stl.h>
#include <python/native/module_of_tensors.h>
#include <python/native/prediction_binding.h>
#include <python/native/python_forward.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace trireme::python {
namespace {

using search::Candidate;
using search::SearchResult;

// What a search is asked beside the module.
struct Request {
  std::vector<at::Tensor> inputs{};
  std::int64_t rows = 1;
  std::int64_t ranks = 1;
  std::string cluster{};
  std::vector<std::string> constraints{};
  Plan base{};
  std::vector<std::string> layouts{};
  std::string elements = "eager";
  bool is_loop = false;
  search::SearchOptions options{};
};

ParameterLayouts layouts_of(const std::vector<std::string>& texts) {
  ParameterLayouts layouts;
  for (const std::string& text : texts) {
    const auto layout = parse_layout(text);
    if (!layout) {
      throw UsageError(join_message("tensor_layouts has '", text, "'"),
                       "expected a pattern and its placement, such as '*.qkv.weight -> Shard(0) "
                       "on tensor'");
    }
    layouts.push_back(*layout);
  }
  return layouts;
}

void check_base(const Plan& base) {
  if (base.activation_bytes > 0 || base.offload_activations) {
    throw UsageError(
        "the plan has activation_bytes or offload_activations, which the search does not choose",
        "leave it out; the constraint memory_gib=40 limits the memory of a rank");
  }
  if (const std::string name = search::setting_of_search(base); !name.empty()) {
    throw UsageError(join_message("the plan has ", name, ", which the search finds"),
                     "leave it out, or give a constraint, such as tensor=4, zero_level=1 or "
                     "memory_gib=40");
  }
}

// As `trireme plan`, and a Model with a plan of mode auto, ask the search.
SearchResult find(const ModuleTensors& tensors, const py::function& forward, Request request,
                  const py::dict& options) {
  const auto module = module_of_tensors(tensors);
  const predict::TrainingOptions training = training_options(options);
  return without_gil([&] {
    const cluster::Cluster cluster = cluster::read_cluster(request.cluster);
    const predict::Elements elements = predict::elements_of(request.elements);
    search::Constraints constraints;
    for (const auto* texts : {&request.base.constraints, &request.constraints}) {
      for (const std::string& text : *texts) search::add_constraint(constraints, text);
    }
    request.base.mode = PlanMode::kManual;
    request.base.constraints.clear();
    check_base(request.base);
    return search::find_plan(
        {.module = module,
         .forward = forward_of(forward),
         .inputs = request.inputs,
         .rows = request.rows,
         .tensor_layouts = layouts_of(request.layouts),
         .options = training,
         .base = request.base,
         .entry = request.is_loop ? PlanEntry::kParallelize : PlanEntry::kTrainingStep,
         .transform =
             [elements](ModuleRecord record) {
               return predict::fuse_elements(std::move(record), elements);
             }},
        request.ranks, cluster, constraints, request.options);
  });
}

SearchResult find_plan(const ModuleTensors& tensors, const py::function& forward,
                       const std::vector<at::Tensor>& inputs, std::int64_t rows, std::int64_t ranks,
                       const std::string& cluster, const std::vector<std::string>& constraints,
                       const Plan& plan, const std::vector<std::string>& tensor_layouts,
                       const std::string& elements, bool loop, double seconds,
                       std::int64_t patience, const py::dict& options) {
  return find(tensors, forward,
              {.inputs = inputs,
               .rows = rows,
               .ranks = ranks,
               .cluster = cluster,
               .constraints = constraints,
               .base = plan,
               .layouts = tensor_layouts,
               .elements = elements,
               .is_loop = loop,
               .options = {.seconds = seconds, .patience = patience}},
              options);
}

void bind_result(py::module_& module) {
  py::class_<Candidate>(module, "Candidate", "A plan with its prediction.")
      .def_readonly("plan", &Candidate::plan)
      .def_readonly("rows", &Candidate::rows)
      .def_readonly("recomputed", &Candidate::recomputed)
      .def_readonly("prediction", &Candidate::prediction)
      .def_readonly("fits", &Candidate::fits);
  py::class_<SearchResult>(module, "SearchResult", "The result of a search for plans.")
      .def_readonly("best", &SearchResult::best)
      .def_readonly("smallest", &SearchResult::smallest)
      .def_readonly("one_device", &SearchResult::one_device)
      .def_readonly("memory_limit", &SearchResult::memory_limit)
      .def_readonly("lower_bound", &SearchResult::lower_bound)
      .def_readonly("considered", &SearchResult::considered)
      .def_readonly("predicted", &SearchResult::predicted)
      .def_readonly("invalid", &SearchResult::invalid)
      .def_readonly("first_invalid", &SearchResult::first_invalid)
      .def_readonly("without_tensor", &SearchResult::without_tensor)
      .def_readonly("left", &SearchResult::left)
      .def_readonly("seconds", &SearchResult::seconds)
      .def_readonly("is_complete", &SearchResult::is_complete)
      .def_property_readonly("fastest", [](const SearchResult& self) { return self.fastest(); })
      .def_property_readonly("plan", [](const SearchResult& self) { return self.fastest().plan; })
      .def_property_readonly("prediction",
                             [](const SearchResult& self) { return self.fastest().prediction; })
      .def_property_readonly("gap", &SearchResult::gap)
      .def_property_readonly("summary",
                             [](const SearchResult& self) { return search::summary_of(self); })
      .def("compare", &search::compare, py::arg("alternative"), py::arg("wish"))
      .def("to_json", [](const SearchResult& self) { return to_json(self); })
      .def("to_dict",
           [](const SearchResult& self) {
             return py::module_::import("json").attr("loads")(to_json(self));
           })
      .def("__str__", [](const SearchResult& self) { return to_string(self); });
}

}  // namespace

void bind_search(py::module_& module) {
  bind_result(module);
  module.def("find_plan", &find_plan, py::arg("tensors"), py::arg("forward"), py::arg("inputs"),
             py::arg("rows"), py::arg("ranks"), py::arg("cluster"), py::arg("constraints"),
             py::arg("plan"), py::arg("tensor_layouts"), py::arg("elements"), py::arg("loop"),
             py::arg("seconds"), py::arg("patience"), py::arg("options"));
}

}  // namespace trireme::python
