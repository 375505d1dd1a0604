// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/explain/explain_reasons.h>

#include <trireme/base/error.h>
#include <trireme/cluster/collective_time.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/across.h>

#include <algorithm>
#include <utility>

namespace trireme::predict {
namespace {

using tensor::DryRunCall;
using tensor::DryRunTensor;
using tensor::Exchange;

ExplainedCommunication line_of(const Exchange& exchange, const DeviceMesh& mesh, std::string tensor,
                               std::string asked_by) {
  return {.collective = exchange.overlaps ? "ring" : name_of(exchange.collective),
          .axis = mesh.axis_name(exchange.axis),
          .bytes = exchange.bytes_sent,
          .seconds = exchange.seconds,
          .tensor = std::move(tensor),
          .asked_by = std::move(asked_by)};
}

std::int64_t elements_of(const DryRunTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.sizes) elements *= size;
  return elements;
}

// Returns the largest parameter among the inputs that is sharded on the axis; null if there is
// none.
const DryRunTensor* named_cut(const DryRunCall& call, int axis) {
  const DryRunTensor* found = nullptr;
  for (const DryRunTensor& input : call.inputs) {
    if (input.name.empty() || !input.layout[axis].is_shard()) continue;
    if (found == nullptr || elements_of(input) > elements_of(*found)) found = &input;
  }
  return found;
}

std::string title_of(const DryRunTensor& tensor) {
  return tensor.name.empty() ? tensor.argument : tensor.name;
}

}  // namespace

std::string name_of(Collective collective) {
  std::string name(cluster::name_of(collective));
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string short_name(const std::string& name) {
  const std::string own = name.starts_with("aten::") ? name.substr(6) : name;
  return own.substr(0, own.find('.'));
}

std::string Reasons::of_pattern(const std::string& name) const {
  const ParameterLayout* const pattern = find_layout(plan_.layouts, name);
  return pattern == nullptr ? std::string() : join_message(" (", to_string(*pattern), ")");
}

std::string Reasons::of_parameter(const std::string& name) const { return name + of_pattern(name); }

// Operators pass a sharded layout on. Follows it back to the operator or tensor where it began.
std::string Reasons::of_cut(const DryRunTensor& cut, int axis) const {
  const DryRunTensor* tensor = &cut;
  while (tensor->name.empty() && tensor->made_by >= 0) {
    const int number = tensor->made_by;
    const DryRunCall& maker = calls_[static_cast<std::size_t>(number)];
    if (maker.is_asked_for) return short_name(maker.name) + " in the model's code";
    const auto before = std::ranges::find_if(maker.inputs, [&](const DryRunTensor& input) {
      return input.name.empty() && input.made_by >= 0 && input.made_by < number &&
             input.given[axis].is_shard() && input.layout[axis].is_shard();
    });
    if (before == maker.inputs.end()) {
      const DryRunTensor* const parameter = named_cut(maker, axis);
      return parameter == nullptr ? short_name(maker.name) : of_parameter(parameter->name);
    }
    tensor = &*before;
  }
  return tensor->name.empty() ? tensor->argument : of_parameter(tensor->name);
}

// Describes the operator that began a partial sum, and the dimension that it summed over.
std::string Reasons::of_sum(const DryRunTensor& partial, int axis) const {
  const std::string op = to_string(partial.given[axis].op());
  int number = partial.made_by;
  while (number >= 0) {
    const DryRunCall& maker = calls_[static_cast<std::size_t>(number)];
    const auto before = std::ranges::find_if(maker.inputs, [&](const DryRunTensor& input) {
      return input.layout[axis].is_partial() && input.made_by >= 0 && input.made_by < number;
    });
    // This operator only passed the sum on. Go back to the one that made its input.
    if (before != maker.inputs.end()) {
      number = before->made_by;
      continue;
    }
    const std::string made = join_message("the ", op, " of ", short_name(maker.name));
    if (const DryRunTensor* const parameter = named_cut(maker, axis)) {
      return join_message(made, " over ", of_parameter(parameter->name));
    }
    const auto cut = std::ranges::find_if(
        maker.inputs, [axis](const DryRunTensor& input) { return input.layout[axis].is_shard(); });
    return cut == maker.inputs.end() ? made : join_message(made, ", cut by ", of_cut(*cut, axis));
  }
  return "a " + op;
}

std::string Reasons::of_layout(const DryRunTensor& tensor, int axis) const {
  const std::string placement = tensor.layout[axis].to_string();
  if (!tensor.name.empty()) return placement + of_pattern(tensor.name);
  return tensor.given[axis].is_partial()
             ? join_message(placement, ", ", of_sum(tensor, axis))
             : join_message(placement, ", cut by ", of_cut(tensor, axis));
}

std::string Reasons::of_input(const DryRunCall& call, std::size_t input, int axis) const {
  const DryRunTensor& moved = call.inputs[input];
  const std::string name = short_name(call.name);
  // The first reason that applies is given.
  if (call.is_asked_for) return name + " in the model's code";
  if (call.gathers_view && input == 0) {
    return join_message(name, " is a view that no rank can make of its part as ",
                        moved.given[axis].to_string(), ", cut by ", of_cut(moved, axis));
  }
  if (moved.given[axis].is_partial()) return "completes " + of_sum(moved, axis);
  for (const DryRunTensor& other : call.inputs) {
    const Placement& placement = other.layout[axis];
    const bool stays = &other != &moved && other.given[axis] == placement;
    if (!stays || placement.is_replicate()) continue;
    return join_message(name, " beside ", title_of(other), " as ", of_layout(other, axis));
  }
  return join_message(name, " takes ", moved.layout[axis].to_string(), ", and ",
                      of_cut(moved, axis), " left ", moved.given[axis].to_string());
}

std::vector<ExplainedCommunication> Reasons::of_call(int index) const {
  const DryRunCall& call = calls_[static_cast<std::size_t>(index)];
  std::vector<ExplainedCommunication> lines;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const DryRunTensor& input = call.inputs[i];
    for (const Exchange& exchange : input.exchanges) {
      lines.push_back(
          line_of(exchange, input.given.mesh(), title_of(input), of_input(call, i, exchange.axis)));
    }
  }
  for (const Exchange& exchange : call.inside) {
    if (exchange.reason != nullptr) {
      lines.push_back(
          line_of(exchange, call.inputs.front().given.mesh(), "within", exchange.reason));
      continue;
    }
    const DryRunTensor* cut = nullptr;
    for (const DryRunTensor& input : call.inputs) {
      const Placement& placement = input.layout[exchange.axis];
      if (cut == nullptr && !placement.is_replicate()) cut = &input;
    }
    lines.push_back(line_of(
        exchange, call.inputs.front().given.mesh(), "within",
        cut == nullptr ? short_name(call.name)
                       : join_message(title_of(*cut), " is ", of_layout(*cut, exchange.axis))));
  }
  for (const DryRunTensor& input : call.inputs) {
    for (const Exchange& exchange : input.back) {
      lines.push_back(line_of(exchange, input.given.mesh(), title_of(input),
                              short_name(call.name) + " writes to it, and it keeps its layout"));
    }
  }
  for (const DryRunTensor& output : call.outputs) {
    for (const Exchange& exchange : output.exchanges) {
      lines.push_back(line_of(exchange, output.given.mesh(), "out",
                              "what " + short_name(call.name) + " writes to keeps its layout"));
    }
  }
  return lines;
}

std::vector<ExplainedCommunication> Reasons::of_gradient(const DryRunTensor& gradient,
                                                         const Layout& layout) const {
  std::vector<ExplainedCommunication> lines;
  if (gradient.is_plain || gradient.given == layout) return lines;
  const tensor::Redistribution path(gradient.sizes, gradient.dtype, gradient.given, layout);
  std::vector<Exchange> exchanges;
  for (const tensor::RedistributionStep& step : path.steps()) tensor::add_step(step, exchanges);
  for (const Exchange& exchange : exchanges) {
    const bool is_sum = gradient.given[exchange.axis].is_partial();
    lines.push_back(
        line_of(exchange, layout.mesh(), "",
                is_sum ? "completes " + of_sum(gradient, exchange.axis)
                       : join_message("comes to the parameter's layout ", layout.to_string())));
  }
  return lines;
}

}  // namespace trireme::predict
