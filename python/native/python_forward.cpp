// SPDX-License-Identifier: Apache-2.0
#include <python/native/python_forward.h>

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <vector>

namespace py = pybind11;

namespace trireme::python {
namespace {

// An error of Trireme within an operator of torch is a RuntimeError in Python, with the text that
// base/error.h gives it.
bool is_of_trireme(const py::error_already_set& raised, const std::string& message) {
  return raised.type().is(py::handle(PyExc_RuntimeError)) &&
         message.find("\n  hint: ") != std::string::npos;
}

py::object class_named(const char* name) {
  return py::module_::import("trireme.errors").attr(name);
}

[[noreturn]] void throw_in_cpp(py::error_already_set& raised) {
  // Ctrl-C and exit() are no reason to try another plan.
  if (!raised.matches(PyExc_Exception)) throw py::error_already_set(raised);
  const std::string message = py::str(raised.value());
  if (raised.matches(class_named("UsageError")) || is_of_trireme(raised, message)) {
    throw ForwardUsageError(message, raised);
  }
  throw ForwardError(message, raised);
}

}  // namespace

graph::Forward forward_of(const py::function& callable) {
  return [&callable](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    const py::gil_scoped_acquire gil;
    try {
      py::tuple arguments(inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) arguments[i] = py::cast(inputs[i]);
      return {callable(*arguments).cast<at::Tensor>()};
    } catch (py::error_already_set& raised) {
      throw_in_cpp(raised);
    }
  };
}

void raise(const ForwardUsageError& error) {
  py::error_already_set raised(error.raised());
  if (raised.matches(class_named("Error"))) throw py::error_already_set(raised);
  py::raise_from(raised, class_named("UsageError").ptr(), error.what());
  throw py::error_already_set();
}

}  // namespace trireme::python
