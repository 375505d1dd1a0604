// SPDX-License-Identifier: Apache-2.0
// The extension module trireme._planning: predictions, searches for plans, schedules, checkpoints,
// and training by plans. It is apart from trireme._native so that `import trireme.torch` does not
// load it.
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>

#include <pybind11/stl.h>
#include <python/native/checkpoint_binding.h>
#include <python/native/comm_hook_binding.h>
#include <python/native/exceptions.h>
#include <python/native/module_of_tensors.h>
#include <python/native/parallel_binding.h>
#include <python/native/plan_binding.h>
#include <python/native/prediction_binding.h>
#include <python/native/python_signals.h>
#include <python/native/schedule_binding.h>
#include <python/native/search_binding.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace trireme::python {
namespace {

void translate(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(std::move(pointer));
  } catch (const CommError& error) {
    if (!restore_exception_of_signal()) set_exception(error);
  } catch (const Error& error) {
    set_exception(error);
  }
}

using Names = std::vector<std::string>;
using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

void bind_all(py::module_& module) {
  py::register_local_exception_translator(&translate);
  py::class_<ModuleTensors>(module, "ModuleTensors")
      .def(py::init([](Names modules, Tensors parameters, Tensors buffers, Names batch_norms) {
             return ModuleTensors{std::move(modules), std::move(parameters), std::move(buffers),
                                  std::move(batch_norms)};
           }),
           py::arg("modules"), py::arg("parameters"), py::arg("buffers"),
           py::arg("batch_norms") = Names());
  bind_plan(module);
  bind_prediction(module);
  bind_search(module);
  bind_schedule(module);
  bind_checkpoint(module);
  bind_comm_hooks(module);
  bind_parallel(module);
  module.def("known_clusters", &cluster::known_clusters);
}

}  // namespace
}  // namespace trireme::python

PYBIND11_MODULE(_planning, module) { trireme::python::bind_all(module); }
