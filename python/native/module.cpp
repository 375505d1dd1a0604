// SPDX-License-Identifier: Apache-2.0
// The extension module trireme._native.
#include <trireme/base/error.h>
#include <trireme/comm/torch_version.h>
#include <trireme/launch/port_owner.h>
#include <trireme/version.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <python/native/exceptions.h>
#include <python/native/process_group_backend.h>
#include <python/native/python_signals.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <utility>

namespace py = pybind11;

namespace trireme::python {
namespace {

c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size, std::chrono::milliseconds timeout,
                                               std::string name, std::vector<int> world_ranks,
                                               std::string profiling_prefix) {
  const py::gil_scoped_release no_gil;
  return c10::make_intrusive<ProcessGroupBackend>(
      GroupRequest{.store = std::move(store),
                   .rank = rank,
                   .size = size,
                   .timeout = timeout,
                   .name = std::move(name),
                   .world_ranks = std::move(world_ranks),
                   .profiling_prefix = std::move(profiling_prefix)});
}

// Returns the name of the engine; nothing if the backend is not ours.
std::optional<std::string> engine_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto* const own = dynamic_cast<ProcessGroupBackend*>(backend.get());
  if (own == nullptr) return std::nullopt;
  return own->engine();
}

// Serves the bindings of torch too, because they share pybind11's translators.
void translate(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(std::move(pointer));
  } catch (const CommError& error) {
    if (!restore_exception_of_signal()) set_exception(error);
  } catch (const Error& error) {
    set_exception(error);
  }
}

}  // namespace
}  // namespace trireme::python

PYBIND11_MODULE(_native, module) {
  using namespace trireme::python;
  module.attr("version") = TRIREME_VERSION;
  module.attr("torch_version") = trireme::comm::built_torch_version();
  module.def("connect", &make_backend, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("name"), py::arg("world_ranks"),
             py::arg("profiling_prefix") = "trireme");
  module.def(
      "describe_port_owner", [](int port) { return trireme::launch::describe_port_owner(port); },
      py::arg("port"));
  module.def("engine_of", &engine_of, py::arg("backend"));
  module.def("watch_signals_of_this_thread", &watch_signals_of_this_thread);
  py::register_exception_translator(&translate);
}
