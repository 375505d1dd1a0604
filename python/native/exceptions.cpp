// SPDX-License-Identifier: Apache-2.0
#include <python/native/exceptions.h>

#include <pybind11/pybind11.h>

#include <chrono>

namespace py = pybind11;

namespace trireme::python {
namespace {

const char* class_of(const Error& error) {
  if (dynamic_cast<const CommError*>(&error) != nullptr) return "CommError";
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return "ConfigError";
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return "UsageError";
  if (dynamic_cast<const DataError*>(&error) != nullptr) return "DataError";
  if (dynamic_cast<const CheckpointError*>(&error) != nullptr) return "CheckpointError";
  return "Error";
}

}  // namespace

void set_exception(const Error& error) {
  const py::object exception =
      py::module_::import("trireme.errors").attr(class_of(error))(error.what());
  if (const auto* comm = dynamic_cast<const CommError*>(&error)) {
    const CommFailure& failure = comm->failure();
    const auto known = [](int rank) { return rank < 0 ? py::object(py::none()) : py::int_(rank); };
    exception.attr("rank") = known(failure.rank);
    exception.attr("peer") = known(failure.peer);
    exception.attr("operation") = failure.operation;
    exception.attr("sequence_number") = failure.sequence;
    exception.attr("elapsed") = std::chrono::duration<double>(failure.elapsed).count();
  }
  PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
}

}  // namespace trireme::python
