// SPDX-License-Identifier: Apache-2.0
#include <python/native/checkpoint_binding.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/checkpoint/safetensors.h>

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <python/native/module_of_tensors.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace trireme::python {
namespace {

struct Loaded {
  std::map<std::string, at::Tensor> tensors{};
  std::int64_t epoch = 0;
  std::int64_t step = 0;
};

Loaded load(const std::filesystem::path& path, const std::string& section) {
  const py::gil_scoped_release no_gil;
  checkpoint::Reader reader(path);
  if (!reader.has(section)) {
    std::vector<std::string> names;
    for (const auto& [name, tensors] : reader.index().sections) names.push_back(name);
    const std::string nearest = config::did_you_mean(section, names);
    throw CheckpointError(
        join_message(path.string(), " has no section '", section, "'"),
        nearest.empty() ? "sections are model, and optimizer if it was saved" : nearest);
  }
  Loaded loaded = {.epoch = reader.state().epoch, .step = reader.state().step};
  for (const auto& [name, tensor] : reader.section(section)) {
    loaded.tensors.emplace(name, reader.read(section, name));
  }
  return loaded;
}

std::filesystem::path save(const std::map<std::string, at::Tensor>& tensors,
                           const std::filesystem::path& path, const std::string& prefix,
                           std::int64_t epoch, std::int64_t step, std::int64_t keep) {
  const py::gil_scoped_release no_gil;
  if (path.extension() == ".safetensors") {
    checkpoint::write_safetensors(path, tensors);
    return path;
  }
  const auto module = module_of_tensors({.buffers = {tensors.begin(), tensors.end()}});
  return checkpoint::save({.folder = path, .prefix = prefix, .keep = keep}, module, nullptr,
                          {.epoch = epoch, .step = step});
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  module.def(
      "load_checkpoint",
      [](const std::filesystem::path& path, const std::string& section) {
        Loaded loaded = load(path, section);
        return py::make_tuple(std::move(loaded.tensors), loaded.epoch, loaded.step);
      },
      py::arg("path"), py::arg("section"));
  module.def("save_checkpoint", &save, py::arg("tensors"), py::arg("path"), py::arg("prefix"),
             py::arg("epoch"), py::arg("step"), py::arg("keep"));
}

}  // namespace trireme::python
