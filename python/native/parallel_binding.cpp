// SPDX-License-Identifier: Apache-2.0
#include <python/native/parallel_binding.h>

#include <trireme/base/error.h>
#include <trireme/comm/consensus.h>
#include <trireme/parallel/gradients/comm_hook.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/run_replicated.h>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <python/native/connect.h>
#include <python/native/module_in_parallel.h>
#include <python/native/python_signals.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace trireme::python {
namespace {

// Destroys objects without the GIL, since that may wait for threads that need it.
template <typename Object>
struct DestroyWithoutGil {
  void operator()(Object* object) const {
    const py::gil_scoped_release no_gil;
    delete object;
  }
};
template <typename Object>
using Owned = std::unique_ptr<Object, DestroyWithoutGil<Object>>;

using NoGil = py::call_guard<py::gil_scoped_release>;

comm::Group connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                    std::chrono::milliseconds timeout, std::string name,
                    std::vector<int> world_ranks) {
  if (size == 1) return comm::Group::self();
  return connect_group({.store = std::move(store),
                        .rank = rank,
                        .size = size,
                        .timeout = timeout,
                        .name = std::move(name),
                        .world_ranks = std::move(world_ranks),
                        .call = "trireme.parallelize"});
}

// Throws on every rank if one has found something wrong before.
void agree(const comm::Group& group, const std::string& doing, const std::string& failure) {
  comm::succeed_together(doing, group, [&] {
    // The text contains its hint.
    if (!failure.empty()) throw UsageError(failure, "");
  });
}

// Makes a tensor that every rank has distributed, whole on each rank of the mesh of `beside`.
at::Tensor replicate_beside(const at::Tensor& beside, const at::Tensor& whole) {
  return detail::replicated_on(layout_of(beside).mesh(), whole);
}

// Makes a tensor distributed as `parameter` is; returns it as it is if `parameter` is plain.
at::Tensor distribute_like(const at::Tensor& parameter, const at::Tensor& whole) {
  if (!has_layout(parameter) || has_layout(whole)) return whole;
  return distribute(whole.detach(), layout_of(parameter));
}

void bind_group(py::module_& module) {
  py::class_<comm::Group, Owned<comm::Group>>(module, "Group")
      .def_property_readonly("rank", &comm::Group::rank)
      .def_property_readonly("size", &comm::Group::size)
      .def_property_readonly("engine", &comm::Group::engine);
  module.def("connect", &connect, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("name"), py::arg("world_ranks"), NoGil());
  module.def(
      "timeout_of",
      [](const c10::intrusive_ptr<c10d::Backend>& backend) {
        return backend->getBackendOptions()->timeout;
      },
      py::arg("backend"));
  module.def(
      "check_same",
      [](const comm::Group& group, const std::string& what, const std::string& text) {
        comm::check_same_text(what, text, group);
      },
      py::arg("group"), py::arg("what"), py::arg("text"), NoGil());
  module.def("agree", &agree, py::arg("group"), py::arg("doing"), py::arg("failure"), NoGil());
  module.def(
      "data_part",
      [](const Plan& plan, const comm::Group& group) {
        const DataPart part = data_part(plan, group);
        return std::pair(part.index, part.count);
      },
      py::arg("plan"), py::arg("group"), NoGil());
}

void bind_tensors(py::module_& module) {
  module.def("has_layout", &has_layout, py::arg("tensor"));
  module.def(
      "describe_layout", [](const at::Tensor& tensor) { return describe(tensor); },
      py::arg("tensor"));
  module.def("full", &full, py::arg("tensor"), NoGil());
  module.def("to_local", &to_local, py::arg("tensor"), NoGil());
  module.def("whole_input", &detail::whole_input, py::arg("input"), NoGil());
  module.def("replicate_beside", &replicate_beside, py::arg("beside"), py::arg("whole"), NoGil());
  module.def("distribute_like", &distribute_like, py::arg("parameter"), py::arg("whole"), NoGil());
}

}  // namespace

void bind_parallel(py::module_& module) {
  bind_group(module);
  bind_tensors(module);
  module.def("watch_signals_of_this_thread", &watch_signals_of_this_thread);
  py::class_<PartOfParameter>(module, "PartOfParameter")
      .def_readonly("parameter", &PartOfParameter::parameter)
      .def_readonly("zero_level", &PartOfParameter::zero_level)
      .def_readonly("elements", &PartOfParameter::elements)
      .def_readonly("stepped", &PartOfParameter::stepped);
  py::class_<Stepped, Owned<Stepped>>(module, "Stepped")
      .def_property_readonly("groups", &Stepped::groups);
  using Self = ModuleInParallel;
  py::class_<Self, Owned<Self>>(module, "ModuleInParallel")
      .def(py::init([](const ModuleTensors& tensors, const Plan& plan, const comm::Group& group) {
             const py::gil_scoped_release no_gil;
             return Owned<Self>(new Self(tensors, plan, group));
           }),
           py::arg("tensors"), py::arg("plan"), py::arg("group"))
      .def_property_readonly("plan", [](const Self& self) { return self.get().plan(); })
      .def("close", &Self::close, NoGil())
      .def("drop", &Self::drop, NoGil())
      .def("shard", &Self::shard, py::arg("groups"), NoGil())
      .def("sharded_parameters", &Self::sharded_parameters)
      .def("cut", &Self::cut, py::arg("parameter"), py::arg("whole"), NoGil())
      .def("join", &Self::join, py::arg("parameter"), py::arg("part"), py::arg("dtype"), NoGil())
      .def("clip", &Self::clip, py::arg("stepped"), py::arg("max_norm"), NoGil())
      .def("begin_no_sync", &Self::begin_no_sync)
      .def("end_no_sync", &Self::end_no_sync)
      .def(
          "gather_parameters", [](Self& self) { self.get().gather_parameters(); }, NoGil())
      .def(
          "join_steps",
          [](Self& self, const std::function<void()>& step) { self.get().join(step); },
          py::arg("step"), NoGil())
      .def(
          "register_comm_hook",
          [](Self& self, std::shared_ptr<CommHook> hook) {
            self.get().register_comm_hook(std::move(hook));
          },
          py::arg("hook"), NoGil())
      .def(
          "abandon_step", [](Self& self) { self.get().abandon_step(); }, NoGil())
      .def(
          "abort", [](Self& self, const std::string& reason) { self.get().abort(reason); },
          py::arg("reason"), NoGil())
      .def_property_readonly("seconds_of_exchange",
                             [](const Self& self) { return self.get().seconds_of_exchange(); });
}

}  // namespace trireme::python
