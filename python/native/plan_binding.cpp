// SPDX-License-Identifier: Apache-2.0
#include <python/native/plan_binding.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/plan/plan_config.h>

#include <pybind11/operators.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <python/native/config_values.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

namespace py = pybind11;

namespace trireme::python {
namespace {

// Axes and layouts are texts in TOML. A dict is more natural in Python.
py::object texts_of_pairs(const py::handle& argument, const char* between) {
  if (!py::isinstance<py::dict>(argument)) return py::reinterpret_borrow<py::object>(argument);
  py::list texts;
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(argument)) {
    texts.append(py::str(key) + py::str(between) + py::str(value));
  }
  return texts;
}

py::dict mesh_of(const Plan& plan) {
  py::dict axes;
  for (const MeshAxis& axis : plan.mesh) axes[py::str(axis.name)] = axis.size;
  return axes;
}

void set(Plan& plan, const py::dict& arguments, const char* call) {
  py::dict texts;
  for (const auto& [key, value] : arguments) {
    const auto name = key.cast<std::string>();
    texts[key] = name == "mesh"      ? texts_of_pairs(value, "=")
                 : name == "layouts" ? texts_of_pairs(value, " -> ")
                                     : py::reinterpret_borrow<py::object>(value);
  }
  config::Fields fields;
  fields.describe_fields(plan);
  set_fields(fields, texts, call);
}

// Returns all fields, or those that are not as in Plan().
py::dict fields_of(Plan plan, bool is_complete) {
  Plan fresh;
  config::Fields fields;
  fields.describe_fields(plan);
  config::Fields defaults;
  defaults.describe_fields(fresh);
  py::dict all;
  for (std::size_t i = 0; i < fields.all().size(); ++i) {
    const config::AnyField& field = *fields.all()[i];
    const py::object value = object_of(field.write());
    if (!is_complete && value.equal(object_of(defaults.all()[i]->write()))) continue;
    all[py::str(field.key())] = field.key() == "mesh" ? py::object(mesh_of(plan)) : value;
  }
  return all;
}

std::string repr(const Plan& plan) {
  std::string text;
  for (const auto& [key, value] : fields_of(plan, /*is_complete=*/false)) {
    text += (text.empty() ? "" : ", ") + key.cast<std::string>() + "=" +
            py::repr(value).cast<std::string>();
  }
  return "Plan(" + text + ")";
}

Plan from_toml(const std::string& text, const std::string& name) {
  PlanSettings settings;
  config::Configuration(settings).read_text(text, name);
  return settings.plan;
}

Plan load(const std::filesystem::path& path) {
  PlanSettings settings;
  config::Configuration(settings).read_file(path);
  return settings.plan;
}

void save(const Plan& plan, const std::filesystem::path& path) {
  PlanSettings settings = {.plan = plan};
  try {
    config::Configuration(settings).save(path);
  } catch (const CheckpointError& error) {  // Files are written so; the text contains a hint.
    throw ConfigError(error.what(), "");
  }
}

void add_fields(py::class_<Plan>& plan) {
  Plan fresh;
  config::Fields fields;
  fields.describe_fields(fresh);
  for (const auto& field : fields.all()) {
    const std::string key = field->key();
    plan.def_property_readonly(
        key.c_str(),
        [key](const Plan& self) {
          return py::object(fields_of(self, /*is_complete=*/true)[py::str(key)]);
        },
        field->description().c_str());
  }
}

}  // namespace

void bind_plan(py::module_& module) {
  py::class_<Plan> plan(
      module, "Plan",
      "All choices of a parallel training, as keyword arguments and attributes. Cannot be changed; "
      "`replace` returns a changed one.");
  plan.def(py::init([](const py::kwargs& fields) {
        auto made = std::make_unique<Plan>();
        set(*made, fields, "Plan");
        return made;
      }))
      .def("replace",
           [](const Plan& self, const py::kwargs& fields) {
             Plan changed = self;
             set(changed, fields, "replace");
             return changed;
           })
      .def_static("from_toml", &from_toml, py::arg("text"), py::arg("name") = "text")
      .def_static("load", &load, py::arg("path"))
      .def("to_toml", [](const Plan& self) { return to_toml(self); })
      .def("save", &save, py::arg("path"))
      .def("to_dict", [](const Plan& self) { return fields_of(self, /*is_complete=*/true); })
      .def("__repr__", &repr)
      .def("__str__", [](const Plan& self) { return to_string(self); })
      .def(py::self == py::self)  // NOLINT(misc-redundant-expression): makes the operator
      .def(py::pickle([](const Plan& self) { return to_toml(self); },
                      [](const std::string& text) { return from_toml(text, "pickled plan"); }));
  add_fields(plan);
  module.def("requested_plan", &requested_plan, py::arg("plan"));
}

}  // namespace trireme::python
