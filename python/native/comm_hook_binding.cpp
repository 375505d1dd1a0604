// SPDX-License-Identifier: Apache-2.0
#include <python/native/comm_hook_binding.h>

#include <trireme/base/error.h>
#include <trireme/parallel/comm_hooks.h>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>

namespace py = pybind11;

namespace trireme::python {
namespace {

// Buckets are exchanged and destroyed on threads that do not hold the GIL.
std::shared_ptr<py::object> keep(py::object object) {
  return {new py::object(std::move(object)), [](py::object* kept) {
            const py::gil_scoped_acquire gil;
            delete kept;
          }};
}

// Calls a function of Python on a thread of autograd, which passes on exceptions of C++ alone.
template <typename Call>
auto call_python(const Call& call) {
  const py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    // What a collective of the hook reports is no mistake of the hook, and says what to do.
    if (error.matches(py::module_::import("trireme.errors").attr("Error"))) {
      throw UsageError(py::str(error.value()).cast<std::string>(), "");
    }
    throw UsageError(join_message("the comm hook raised ", error.what()),
                     "correct the function that was given to register_comm_hook");
  }
}

}  // namespace

PythonCommHook::PythonCommHook(py::function start) : start_(keep(std::move(start))) {}

std::function<void()> PythonCommHook::start(GradientBucket& bucket, const comm::Group& /*group*/) {
  const auto finish = call_python([&] {
    py::object returned = (*start_)(bucket);
    if (!returned.is_none() && PyCallable_Check(returned.ptr()) == 0) {
      throw UsageError(
          join_message("the comm hook returned a ",
                       py::str(py::type::of(returned).attr("__name__")).cast<std::string>(),
                       ", expected a function without arguments, or None"),
          "return a function that waits until bucket.memory holds the sum, such as "
          "work.wait");
    }
    return keep(std::move(returned));
  });
  return [finish] {
    call_python([&] {
      if (!finish->is_none()) (*finish)();
    });
  };
}

void bind_comm_hooks(py::module_& module) {
  py::class_<GradientBucket>(module, "GradientBucket")
      .def_readonly("memory", &GradientBucket::memory)
      .def_readonly("gradients", &GradientBucket::gradients)
      .def_readonly("names", &GradientBucket::names);
  py::class_<CommHook, std::shared_ptr<CommHook>>(module, "CommHook")
      .def(py::init([](const py::args&, const py::kwargs&) -> std::shared_ptr<CommHook> {
        throw UsageError("a CommHook cannot be made by itself",
                         "give register_comm_hook a function, or trireme.PowerSgd or TopK");
      }));
  py::class_<PowerSgdCommHook, CommHook, std::shared_ptr<PowerSgdCommHook>>(module, "PowerSgd")
      .def(py::init([](std::int64_t rank, std::int64_t start_iteration, double min_compression_rate,
                       bool error_feedback, bool warm_start, std::uint64_t seed,
                       double orthogonalization_epsilon) {
             return std::make_shared<PowerSgdCommHook>(
                 PowerSgdOptions{.rank = rank,
                                 .start_iteration = start_iteration,
                                 .min_compression_rate = min_compression_rate,
                                 .error_feedback = error_feedback,
                                 .warm_start = warm_start,
                                 .seed = seed,
                                 .orthogonalization_epsilon = orthogonalization_epsilon});
           }),
           py::kw_only(), py::arg("rank") = PowerSgdOptions().rank,
           py::arg("start_iteration") = PowerSgdOptions().start_iteration,
           py::arg("min_compression_rate") = PowerSgdOptions().min_compression_rate,
           py::arg("error_feedback") = PowerSgdOptions().error_feedback,
           py::arg("warm_start") = PowerSgdOptions().warm_start,
           py::arg("seed") = PowerSgdOptions().seed,
           py::arg("orthogonalization_epsilon") = PowerSgdOptions().orthogonalization_epsilon);
  py::class_<TopKCommHook, CommHook, std::shared_ptr<TopKCommHook>>(module, "TopK")
      .def(py::init([](double fraction, bool error_feedback) {
             return std::make_shared<TopKCommHook>(
                 TopKOptions{.fraction = fraction, .error_feedback = error_feedback});
           }),
           py::kw_only(), py::arg("fraction") = TopKOptions().fraction,
           py::arg("error_feedback") = TopKOptions().error_feedback);
  py::class_<PythonCommHook, CommHook, std::shared_ptr<PythonCommHook>>(module, "PythonCommHook")
      .def(py::init<py::function>(), py::arg("start"));
}

}  // namespace trireme::python
