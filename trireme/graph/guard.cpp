// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/guard.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <iomanip>
#include <limits>

namespace trireme::graph {
namespace {

// Returns an argument as text that is different for different values: doubles have all digits.
std::string text_of(const c10::IValue& value) {
  TextWriter text;
  if (value.isDouble()) {
    text << std::setprecision(std::numeric_limits<double>::max_digits10) << value.toDouble();
  } else {
    text << value;
  }
  return text.str();
}

std::string shape_of(const Value& value) {
  return join_message(value.dtype, " ", c10::IntArrayRef(value.sizes), " with strides ",
                      c10::IntArrayRef(value.strides));
}

// Compares two graphs: first modules and inputs, then operators in the order in which they ran. The
// first difference is usually the cause of all later ones.
class Comparison {
 public:
  Comparison(const Graph& before, const Graph& after) : before_(before), after_(after) {}

  std::string first() const {
    for (const std::string& difference : {of_modules(), of_inputs()}) {
      if (!difference.empty()) return difference;
    }
    const int num = std::min(before_.num_nodes(), after_.num_nodes());
    for (int index = 0; index < num; ++index) {
      const std::string difference = of_node(index);
      if (!difference.empty()) return difference;
    }
    if (before_.num_nodes() > num) return before_.describe(num) + " is no longer called";
    if (after_.num_nodes() > num) return after_.describe(num) + " is called in addition";
    if (before_.results != after_.results) return "forward returns other tensors";
    return {};
  }

 private:
  std::string of_modules() const {
    if (before_.modules.size() != after_.modules.size())
      return "the module has other modules in it";
    for (std::size_t i = 0; i < before_.modules.size(); ++i) {
      const ModuleState& was = before_.modules[i];
      const ModuleState& is = after_.modules[i];
      if (was.path != is.path) return join_message("module ", was.path, " is now ", is.path);
      if (was.is_training == is.is_training) continue;
      return join_message("module ", was.path.empty() ? "(the outermost)" : was.path,
                          is.is_training ? " is in training now" : " is in evaluation now");
    }
    return {};
  }

  std::string of_inputs() const {
    if (before_.inputs.size() != after_.inputs.size()) {
      return join_message("forward is given ", after_.inputs.size(), " inputs, and was given ",
                          before_.inputs.size());
    }
    for (std::size_t i = 0; i < before_.inputs.size(); ++i) {
      const std::string was = shape_of(before_.value(before_.inputs[i]));
      const std::string is = shape_of(after_.value(after_.inputs[i]));
      if (was != is) return join_message("input ", i, " was ", was, " and is ", is);
    }
    return {};
  }

  std::string of_node(int index) const {
    const Node& was = before_.node(index);
    const Node& is = after_.node(index);
    const std::string place = before_.describe(index);
    // Ids of values are comparable because everything before this operator is equal.
    if (was.op != is.op || was.module != is.module) {
      return join_message(place, " is now ", after_.describe(index));
    }
    for (std::size_t i = 0; i < was.arguments.size(); ++i) {
      const std::string& name = was.op.schema().arguments()[i].name();
      const std::string value_before = text_of(was.arguments[i]);
      const std::string value_after = text_of(is.arguments[i]);
      if (value_before != value_after) {
        return join_message(place, ": ", name, " was ", value_before, " and is ", value_after);
      }
      if (was.inputs[i] != is.inputs[i])
        return join_message(place, " takes another tensor as ", name);
      const std::string shapes = of_values(was.inputs[i]);
      if (!shapes.empty()) return join_message(place, ": ", name, shapes);
    }
    const std::string shapes = was.outputs == is.outputs ? of_values(was.outputs) : "";
    if (was.outputs != is.outputs) return place + " gives other tensors";
    if (!shapes.empty()) return place + ": its result" + shapes;
    if (was.grad_mode != is.grad_mode) return place + ": gradients are on or off otherwise";
    if (was.autocast != is.autocast) return place + ": autocast is set otherwise";
    return {};
  }

  std::string of_values(const std::vector<ValueId>& ids) const {
    for (const ValueId id : ids) {
      if (id == kNoValue) continue;
      const std::string was = shape_of(before_.value(id));
      const std::string is = shape_of(after_.value(id));
      if (was != is) return join_message(" was ", was, " and is ", is);
    }
    return {};
  }

  const Graph& before_;
  const Graph& after_;
};

}  // namespace

std::string capture_key(const torch::nn::Module& module, const std::vector<at::Tensor>& inputs) {
  TextWriter key;
  module.apply([&](const torch::nn::Module& child) { key << (child.is_training() ? 't' : 'e'); });
  for (const at::Tensor& input : inputs) {
    key << ' ' << input.scalar_type() << input.sizes() << (input.requires_grad() ? 'g' : '-');
  }
  // Each node records the autocast settings under which it ran.
  const AutocastState autocast = AutocastState::now();
  for (std::size_t i = 0; i < autocast.is_enabled.size(); ++i) {
    if (autocast.is_enabled[i]) key << " autocast" << i << autocast.dtype[i];
  }
  return key.str();
}

std::string first_difference(const Graph& before, const Graph& after) {
  return Comparison(before, after).first();
}

}  // namespace trireme::graph
