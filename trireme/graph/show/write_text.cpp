// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/graph/show/graph_text.h>
#include <trireme/graph/show/names.h>
#include <trireme/graph/show/text_format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace trireme::graph {
namespace {

using detail::plain_text;
using OrderedJson = nlohmann::ordered_json;

// JSON has no infinities and no NaN.
OrderedJson number(double value) {
  if (std::isfinite(value)) return value;
  return {{"double", plain_text(value)}};
}

// Returns an argument. Types that JSON does not tell apart are objects with the type as their key.
OrderedJson argument(const c10::IValue& value) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return number(value.toDouble());
  if (value.isString()) return value.toStringRef();
  if (value.isDevice()) return {{"device", value.toDevice().str()}};
  if (value.isIntList()) return {{"ints", value.toIntVector()}};
  if (value.isBoolList()) {
    OrderedJson all = OrderedJson::array();
    for (const bool item : value.toBoolList()) all.push_back(item);
    return {{"bools", std::move(all)}};
  }
  if (value.isDoubleList()) {
    OrderedJson all = OrderedJson::array();
    for (const double item : value.toDoubleVector()) all.push_back(number(item));
    return {{"doubles", std::move(all)}};
  }
  if (value.isComplexDouble()) {
    const c10::complex<double> complex = value.toComplexDouble();
    return {{"complex", {number(complex.real()), number(complex.imag())}}};
  }
  // The tensors are in the node's inputs.
  if (value.isTensor()) return {{"tensor", nullptr}};
  if (value.isTensorList()) return {{"tensors", nullptr}};
  if (value.isOptionalTensorList()) return {{"optional_tensors", nullptr}};
  return {{"text", plain_text(value)}};
}

OrderedJson of(const ModuleState& module) {
  return {{"path", module.path}, {"type", module.type}, {"is_training", module.is_training}};
}

OrderedJson of(const AutocastState& state) {
  OrderedJson devices = OrderedJson::array();
  for (std::size_t i = 0; i < state.is_enabled.size(); ++i) {
    devices.push_back(
        {{"is_enabled", state.is_enabled[i]}, {"dtype", c10::toString(state.dtype[i])}});
  }
  return {{"devices", std::move(devices)}, {"keeps_casts", state.keeps_casts}};
}

// Fields with their usual value are left out.
OrderedJson of(const Value& value, ValueId id) {
  OrderedJson json = {{"kind", detail::kKindNames[static_cast<std::size_t>(value.kind)]},
                      {"name", value.name},
                      {"dtype", c10::toString(value.dtype)},
                      {"sizes", value.sizes},
                      {"strides", value.strides}};
  if (!value.names.empty()) json["names"] = value.names;
  if (value.requires_grad) json["requires_grad"] = true;
  if (value.node >= 0) json["node"] = value.node;
  if (value.object != id) json["object"] = value.object;
  if (value.memory != id) json["memory"] = value.memory;
  if (value.view_of != kNoValue) json["view_of"] = value.view_of;
  if (value.is_saved) json["is_saved"] = true;
  return json;
}

OrderedJson of(const Node& node, std::size_t autocast) {
  OrderedJson arguments = OrderedJson::array();
  for (const c10::IValue& value : node.arguments) arguments.push_back(argument(value));
  OrderedJson json = {{"op", node.name()},
                      {"module", node.module},
                      {"inputs", node.inputs},
                      {"outputs", node.outputs},
                      {"arguments", std::move(arguments)}};
  for (const Write& write : node.writes) json["writes"].push_back({write.before, write.after});
  if (!node.grad_mode) json["grad_mode"] = false;
  if (autocast != 0) json["autocast"] = autocast;
  if (node.is_random) json["is_random"] = true;
  if (node.flops != 0) json["flops"] = node.flops;
  if (node.backward_flops != 0) json["backward_flops"] = node.backward_flops;
  if (node.bytes != 0) json["bytes"] = node.bytes;
  if (!node.saved.empty()) json["saved"] = node.saved;
  if (node.saved_bytes != 0) json["saved_bytes"] = node.saved_bytes;
  return json;
}

OrderedJson of(const Mark& mark) {
  OrderedJson json = {{"name", mark.name}, {"node", mark.node}, {"module", mark.module}};
  if (mark.value != kNoValue) json["value"] = mark.value;
  return json;
}

// Writes one element in a line, so that files can be compared by line.
void add_lines(std::string& text, const char* key, const std::vector<OrderedJson>& all) {
  text += plain_text(",\n\"", key, "\": [");
  for (std::size_t i = 0; i < all.size(); ++i) {
    text += plain_text(i == 0 ? "\n" : ",\n", all[i].dump());
  }
  text += "\n]";
}

std::string as_json(const Graph& graph) {
  std::string text = plain_text("{\"", detail::kFormatKey, "\": ", detail::kFormat);
  std::vector<OrderedJson> lines;
  for (const ModuleState& module : graph.modules) lines.push_back(of(module));
  add_lines(text, "modules", lines);
  lines.clear();
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    lines.push_back(of(graph.values[i], static_cast<ValueId>(i)));
  }
  add_lines(text, "values", lines);
  for (const auto& [key, ids] :
       {std::pair("inputs", &graph.inputs), std::pair("results", &graph.results),
        std::pair("parameters", &graph.parameters), std::pair("buffers", &graph.buffers)}) {
    text += plain_text(",\n\"", key, "\": ", OrderedJson(*ids).dump());
  }
  std::vector<AutocastState> states;
  lines.clear();
  for (const Node& node : graph.nodes) {
    auto state = std::ranges::find(states, node.autocast);
    if (state == states.end()) state = states.insert(state, node.autocast);
    lines.push_back(of(node, static_cast<std::size_t>(state - states.begin())));
  }
  add_lines(text, "nodes", lines);
  lines.clear();
  for (const AutocastState& state : states) lines.push_back(of(state));
  add_lines(text, "autocast", lines);
  lines.clear();
  for (const Mark& mark : graph.marks) lines.push_back(of(mark));
  add_lines(text, "marks", lines);
  return text + "\n}\n";
}

}  // namespace

std::string to_text(const Graph& graph) {
  try {
    return as_json(graph);
  } catch (const OrderedJson::exception& error) {
    throw UsageError(join_message("a graph cannot be written: ", error.what()),
                     "names of modules, parameters and marks, and arguments that are text, have to "
                     "be valid UTF-8");
  }
}

void write_graph(const Graph& graph, const std::filesystem::path& file) {
  write_file_or_throw<DataError>(file, to_text(graph));
}

}  // namespace trireme::graph
