// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/graph.h>

#include <trireme/base/error.h>

#include <ATen/autocast_mode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>

namespace trireme::graph {
namespace {

constexpr std::array<at::DeviceType, 2> kDevices = {at::kCPU, at::kCUDA};

}  // namespace

std::int64_t Value::bytes() const {
  auto all = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (const std::int64_t size : sizes) all *= size;
  return all;
}

AutocastState AutocastState::now() {
  AutocastState state;
  for (std::size_t i = 0; i < kDevices.size(); ++i) {
    state.is_enabled[i] = at::autocast::is_autocast_enabled(kDevices[i]);
    state.dtype[i] = at::autocast::get_autocast_dtype(kDevices[i]);
  }
  state.keeps_casts = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::set() const {
  for (std::size_t i = 0; i < kDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kDevices[i], is_enabled[i]);
    at::autocast::set_autocast_dtype(kDevices[i], dtype[i]);
  }
  at::autocast::set_autocast_cache_enabled(keeps_casts);
}

std::string Node::name() const {
  const c10::OperatorName& operator_name = op.operator_name();
  return operator_name.overload_name.empty()
             ? operator_name.name
             : operator_name.name + "." + operator_name.overload_name;
}

std::vector<ValueId> Graph::inputs_of(int index) const {
  std::vector<ValueId> all;
  for (const std::vector<ValueId>& argument : node(index).inputs) {
    for (const ValueId id : argument) {
      if (id != kNoValue && std::ranges::find(all, id) == all.end()) all.push_back(id);
    }
  }
  return all;
}

std::string Graph::describe(int index) const {
  const Node& this_node = node(index);
  std::string text = join_message("operator ", index, ", ", this_node.name());
  if (!this_node.module.empty()) text += " of " + this_node.module;
  return text;
}

}  // namespace trireme::graph
