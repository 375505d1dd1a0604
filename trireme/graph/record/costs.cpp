// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/costs.h>

#include <ATen/core/enum_tag.h>
#include <torch/csrc/autograd/node.h>

#include <algorithm>

namespace trireme::graph::detail {
namespace {

std::int64_t bytes_of(const tensor::RehearsedTensor& tensor) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  for (const std::int64_t size : tensor.sizes) bytes *= size;
  return bytes;
}

c10::OperatorName parse(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

const Costs::Known& Costs::known(const std::string& name) {
  const auto [found, is_new] = operators_.try_emplace(name);
  if (!is_new) return found->second;
  const auto op = c10::Dispatcher::singleton().findSchema(parse(name));
  if (!op) return found->second;
  const auto& returns = op->schema().returns();
  const auto* alias = returns.empty() ? nullptr : returns[0].alias_info();
  found->second = {.is_random = op->hasTag(at::Tag::nondeterministic_seeded),
                   .is_view = alias != nullptr && !alias->isWrite()};
  return found->second;
}

void Costs::begin_backward() {
  is_backward_ = true;
  for (std::size_t i = 0; i < graph_->values.size(); ++i) {
    const auto id = static_cast<ValueId>(i);
    if (recorder_->call_of(id) >= 0) values_[recorder_->call_of(id)].push_back(id);
  }
}

void Costs::add(const tensor::RehearsedCall& call) {
  if (is_backward_) {
    add_backward(call);
    return;
  }
  const Known& its = known(call.name);
  recorder_->add_flops(call.flops);
  if (its.is_random) recorder_->notice_random();
  Made made = {.node = recorder_->current_node(), .is_view = its.is_view};
  if (its.is_view && !call.inputs.empty()) {
    made.viewed = call.inputs[0].made_by;
    made.name = call.inputs[0].name;
  }
  forward_.push_back(std::move(made));
}

void Costs::add_backward(const tensor::RehearsedCall& call) {
  const auto running = torch::autograd::get_current_node();
  const int node = running ? recorder_->node_of_sequence(running->sequence_nr()) : -1;
  if (node >= 0) graph_->nodes[static_cast<std::size_t>(node)].backward_flops += call.flops;
  read_.clear();
  for (const tensor::RehearsedTensor& input : call.inputs) save(input);
}

void Costs::save_unnamed(int call, std::int64_t bytes) {
  const int node = forward_[static_cast<std::size_t>(call)].node;
  int& saved = saved_[{call, bytes}];
  if (node >= graph_->num_nodes() || ++read_[{call, bytes}] <= saved) return;
  ++saved;
  graph_->nodes[static_cast<std::size_t>(node)].saved_bytes += bytes;
}

// A tensor that forward made and backward reads has been kept for it.
void Costs::save(const tensor::RehearsedTensor& tensor) {
  int call = tensor.made_by;
  if (call >= static_cast<int>(forward_.size())) return;
  std::string name = tensor.name;
  bool is_itself = true;
  while (call >= 0) {
    if (const auto found = values_.find(call); found != values_.end()) {
      for (const ValueId id : found->second) {
        Value& value = graph_->values[static_cast<std::size_t>(id)];
        if (is_itself && value.sizes != tensor.sizes) continue;
        value.is_saved = true;
        return;
      }
    }
    const Made& made = forward_[static_cast<std::size_t>(call)];
    if (!made.is_view) {
      save_unnamed(call, bytes_of(tensor));
      return;
    }
    name = made.name;
    call = made.viewed;
    is_itself = false;
  }
  for (const ValueId id : graph_->inputs) {
    Value& value = graph_->values[static_cast<std::size_t>(id)];
    if (value.name == name) value.is_saved = true;
  }
}

}  // namespace trireme::graph::detail
