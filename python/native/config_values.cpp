// SPDX-License-Identifier: Apache-2.0
#include <python/native/config_values.h>

#include <trireme/base/error.h>

#include <pybind11/stl.h>

#include <cstdint>
#include <utility>
#include <variant>

namespace py = pybind11;

namespace trireme::python {
namespace {

std::string text_of(const py::handle& object) { return py::repr(object).cast<std::string>(); }

[[noreturn]] void refuse(const py::handle& object, const config::Origin& origin) {
  throw UsageError(join_message(config::to_string(origin), ": ", text_of(object), " is of type ",
                                py::type::of(object).attr("__name__").cast<std::string>()),
                   "expected bool, int, float, str, or a list, tuple or dict of these");
}

config::Value value_of(const py::handle& object, const config::Origin& origin) {
  config::Value value = {.origin = origin};
  if (py::isinstance<py::bool_>(object)) {
    value.data = object.cast<bool>();
  } else if (py::isinstance<py::int_>(object)) {
    int overflow = 0;
    const std::int64_t number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    if (overflow != 0) refuse(object, origin);
    value.data = number;
  } else if (py::isinstance<py::float_>(object)) {
    value.data = object.cast<double>();
  } else if (py::isinstance<py::str>(object)) {
    value.data = object.cast<std::string>();
  } else if (py::isinstance<py::dict>(object)) {
    config::Value::List pairs;
    for (const auto& [key, content] : py::reinterpret_borrow<py::dict>(object)) {
      pairs.push_back(
          {.data = config::Value::List{value_of(key, origin), value_of(content, origin)},
           .origin = origin});
    }
    value.data = std::move(pairs);
  } else if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) {
    config::Value::List elements;
    for (const py::handle element : object) elements.push_back(value_of(element, origin));
    value.data = std::move(elements);
  } else {
    refuse(object, origin);
  }
  return value;
}

py::object object_within(const config::Value& value) {
  const auto* const list = value.get<config::Value::List>();
  return list == nullptr ? object_of(value) : py::object(py::tuple(object_of(value)));
}

}  // namespace

void set_fields(config::Fields& fields, const py::dict& arguments, const std::string& call) {
  config::Value::Table entries;
  for (const auto& [key, object] : arguments) {
    const auto name = key.cast<std::string>();
    const config::Origin origin = {
        .kind = config::Origin::Kind::kCommandLine,
        .argument = join_message(call, "(", name, "=", text_of(object), ")")};
    entries.push_back({.key = name, .origin = origin, .value = value_of(object, origin)});
  }
  config::Problems problems;
  fields.read({.data = std::move(entries)}, "", problems);
  config::throw_if_any(std::move(problems));
  fields.commit();
}

py::object object_of(const config::Value& value) {
  if (const auto* flag = value.get<bool>()) return py::bool_(*flag);
  if (const auto* number = value.get<std::int64_t>()) return py::int_(*number);
  if (const auto* real = value.get<double>()) return py::float_(*real);
  if (const auto* text = value.get<std::string>()) return py::str(*text);
  if (const auto* date = value.get<config::Value::Date>()) return py::str(date->text);
  if (const auto* list = value.get<config::Value::List>()) {
    py::list elements;
    for (const config::Value& element : *list) elements.append(object_within(element));
    return elements;
  }
  py::dict entries;
  for (const config::Entry& entry : *value.get<config::Value::Table>()) {
    entries[py::str(entry.key)] = object_of(entry.value);
  }
  return entries;
}

}  // namespace trireme::python
