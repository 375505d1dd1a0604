// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/run/piece_program.h>

#include <trireme/base/error.h>
#include <trireme/graph/boundaries.h>
#include <trireme/graph/record/modules.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace trireme::graph::detail {
namespace {

void add_once(std::vector<ValueId>& all, ValueId id) {
  if (std::ranges::find(all, id) == all.end()) all.push_back(id);
}

// Throws unless a tensor of the module has the sizes and dtype of the captured one.
void check_same(const Value& value, const std::string& name, const at::Tensor& tensor) {
  if (tensor.sizes() == c10::IntArrayRef(value.sizes) && tensor.scalar_type() == value.dtype)
    return;
  throw UsageError(
      join_message("the module's ", name, " is ", tensor.scalar_type(), " ", tensor.sizes(),
                   ", and was captured as ", value.dtype, " ", c10::IntArrayRef(value.sizes)),
      "give the module that was captured, or capture this one");
}

// Returns the memories that operators write to.
std::unordered_set<ValueId> written_by(const Graph& graph, int begin, int end) {
  std::unordered_set<ValueId> written;
  for (int index = begin; index < end; ++index) {
    for (const Write& write : graph.node(index).writes) {
      written.insert(graph.value(write.after).memory);
    }
  }
  return written;
}

// Returns the positions of arguments that give the device: those that name one, and an open
// `device` argument of an operator without tensors.
std::vector<std::size_t> devices_of(const Node& node) {
  const bool has_tensors =
      std::ranges::any_of(node.inputs, [](const auto& ids) { return !ids.empty(); });
  const auto& arguments = node.op.schema().arguments();
  std::vector<std::size_t> devices;
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    const bool is_open = arguments[i].name() == "device" && node.arguments[i].isNone();
    if (node.arguments[i].isDevice() || (is_open && !has_tensors)) devices.push_back(i);
  }
  return devices;
}

}  // namespace

Program::Program(std::shared_ptr<const Graph> its_graph, int its_begin, int its_end,
                 const torch::nn::Module& module, const std::vector<Part>& parts)
    : graph(std::move(its_graph)),
      begin(its_begin),
      end(its_end),
      part{.begin = begin, .end = end, .parts = parts} {
  check_boundaries();
  written_ = written_by(*graph, begin, end);
  find_inputs();
  find_outputs();
  find_writes();
  add_steps(parts);
  find_slots();
  bind(module);
  drop_unused();
}

Program::Program(std::shared_ptr<const Graph> its_graph, const Part& its_part)
    : graph(std::move(its_graph)),
      begin(its_part.begin),
      end(its_part.end),
      part(its_part),
      is_part_(true) {
  written_ = written_by(*graph, begin, end);
  written_anywhere_ = written_by(*graph, 0, graph->num_nodes());
  find_inputs();
  find_outputs();
  find_writes();
  add_steps(its_part.parts);
  find_slots();
}

void Program::find_slots() {
  for (const ValueId id : inputs) input_slots.push_back(slot_of(id));
  for (const ValueId id : outputs) output_slots.push_back(slot_of(id));
  for (const ValueId id : written_buffers) written_buffer_slots.push_back(slot_of(id));
}

void Program::check_boundaries() const {
  if (!graph->can_run) {
    throw UsageError("a graph that was read from a file cannot be run",
                     "capture the module: a file has no constants and not all arguments");
  }
  if (begin < 0 || begin >= end || end > graph->num_nodes()) {
    throw UsageError(join_message("a piece from boundary ", begin, " to ", end, " of a graph of ",
                                  graph->num_nodes(), " operators"),
                     "expected 0 <= begin < end <= the number of operators");
  }
  for (const int boundary : {begin, end}) {
    if (boundary == 0 || boundary == graph->num_nodes()) continue;
    const std::string reason = reason_against_cut(*graph, boundary);
    if (reason.empty()) continue;
    throw UsageError(
        join_message("the graph cannot be cut before ", graph->describe(boundary), ": ", reason),
        "cut elsewhere, or write the module without the in-place operator");
  }
}

// Returns the slot of a tensor. Its values share one, since a write changes the tensor in place.
std::size_t Program::slot_of(ValueId id) {
  if (id == kNoValue) return Feed::kNone;
  const auto [found, is_new] = slots_.try_emplace(graph->value(id).object, slots_.size());
  if (is_new) tensors.emplace_back();
  return found->second;
}

// Adds a value that an operator of the piece reads to the inputs, parameters, buffers or constants,
// unless the piece makes it.
void Program::add_input(ValueId id) {
  const Value& value = graph->value(id);
  if (value.node >= begin) return;
  if (value.node >= 0 || value.kind == ValueKind::kInput) {
    add_once(inputs, id);
  } else if (value.kind == ValueKind::kParameter) {
    add_once(parameters, id);
  } else if (value.kind == ValueKind::kBuffer) {
    add_once(buffers, id);
  } else {
    tensors[slot_of(id)] = value.constant;
  }
}

// A part reads the module's own tensors, whatever was written to them before it. It reads copies of
// buffers that other operators write to.
void Program::add_input_of_part(ValueId id) {
  const Value& value = graph->value(id);
  if (value.node >= begin) return;
  const ValueKind kind = graph->value(value.object).kind;
  const Value& memory = graph->value(value.memory);
  const bool is_written_elsewhere =
      !written_.contains(value.memory) && written_anywhere_.contains(value.memory);
  if (is_written_elsewhere && memory.kind == ValueKind::kParameter) {
    throw UsageError(join_message("operators ", begin, " to ", end - 1,
                                  " cannot be run again for backward: they read ", memory.name,
                                  ", which other operators write to"),
                     "leave them out of what is recomputed, or write to parameters outside of "
                     "forward");
  }
  const bool is_copied = is_written_elsewhere && memory.kind == ValueKind::kBuffer;
  if (kind == ValueKind::kConstant) {
    tensors[slot_of(id)] = value.constant;
  } else if (kind == ValueKind::kParameter) {
    add_once(parameters, value.object);
  } else if (kind == ValueKind::kBuffer && !is_copied) {
    add_once(buffers, value.object);
  } else if (std::ranges::find(inputs, id) == inputs.end()) {
    inputs.push_back(id);
    is_input_copied.push_back(is_copied);
  }
}

void Program::find_inputs() {
  for (int index = begin; index < end; ++index) {
    for (const ValueId id : graph->inputs_of(index)) {
      is_part_ ? add_input_of_part(id) : add_input(id);
    }
  }
  if (is_part_ || end != graph->num_nodes()) return;
  for (const ValueId id : graph->results) {
    if (graph->value(id).node < 0) add_input(id);
  }
}

// The outputs are values that later operators or the results need. A part leaves out tensors of the
// module, which it changes in place.
void Program::find_outputs() {
  const std::vector<int> last = last_uses(*graph);
  const auto add = [&](ValueId id) {
    if (id == kNoValue || last[static_cast<std::size_t>(id)] < end) return;
    const Value& value = graph->value(id);
    const bool is_own = !is_part_ || graph->value(value.object).kind == ValueKind::kResult;
    if (value.node >= begin && is_own) add_once(outputs, id);
  };
  for (int index = begin; index < end; ++index) {
    for (const ValueId id : graph->node(index).outputs) add(id);
    for (const Write& write : graph->node(index).writes) add(write.after);
  }
  if (is_part_ || end != graph->num_nodes()) return;
  for (const ValueId id : graph->results) {
    if (graph->value(id).node < 0) add_once(outputs, id);
  }
}

void Program::find_writes() {
  for (const ValueId id : inputs) {
    is_input_written.push_back(written_.contains(graph->value(id).memory));
  }
  for (const ValueId id : buffers) {
    if (written_.contains(graph->value(id).memory)) written_buffers.push_back(id);
  }
}

// Takes the tensors of the module by name. Any of the names of a shared tensor will do.
void Program::bind(const torch::nn::Module& module) {
  const ModuleTree tree(module);
  std::unordered_map<std::string, const at::Tensor*> by_name;
  // Operators that make tensors make them where the module is.
  if (!tree.tensors.empty()) device = tree.tensors.front().tensor.device();
  for (const ModuleTensor& item : tree.tensors) {
    for (const std::string& name : item.names) by_name[name] = &item.tensor;
  }
  for (const std::vector<ValueId>* ids : {&parameters, &buffers}) {
    for (const ValueId id : *ids) {
      const Value& value = graph->value(id);
      const auto name = std::ranges::find_if(
          value.names, [&](const std::string& one_name) { return by_name.contains(one_name); });
      if (name == value.names.end()) {
        throw UsageError(join_message("the module has no ", value.name, ", which ",
                                      "the piece from boundary ", begin, " to ", end, " uses"),
                         "give the module that was captured, or one with the same names");
      }
      check_same(value, *name, *by_name[*name]);
      tensors[slot_of(id)] = *by_name[*name];
    }
  }
  for (const auto& nested : parts_) nested->bind(*this);
}

void Program::bind(const Program& whole) {
  device = whole.device;
  for (const std::vector<ValueId>* ids : {&parameters, &buffers}) {
    for (const ValueId id : *ids) tensors[slot_of(id)] = whole.tensors[whole.slots_.at(id)];
  }
  for (const auto& nested : parts_) nested->bind(*this);
  drop_unused();
}

Program Program::moved_to(at::Device its_device,
                          const std::function<at::Tensor(ValueId)>& there) const {
  Program moved = *this;
  moved.move(its_device, there);
  return moved;
}

std::vector<at::Tensor> Program::lasting() const {
  std::vector<at::Tensor> all;
  std::ranges::copy_if(tensors, std::back_inserter(all),
                       [](const at::Tensor& tensor) { return tensor.defined(); });
  for (const auto& nested : parts_) {
    const std::vector<at::Tensor> more = nested->lasting();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// Called on a copy, whose parts are still those of the original.
void Program::move(at::Device its_device, const std::function<at::Tensor(ValueId)>& there) {
  device = its_device;
  for (const std::vector<ValueId>* ids : {&parameters, &buffers}) {
    for (const ValueId id : *ids) tensors[slot_of(id)] = there(id);
  }
  for (const auto& [object, slot] : slots_) {
    const bool is_constant = graph->value(object).kind == ValueKind::kConstant;
    at::Tensor& tensor = tensors[slot];
    // A tensor made from a number works with any device, and must keep promoting as a number.
    if (!is_constant || !tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      continue;
    }
    tensor = tensor.to(device);
  }
  std::size_t index = 0;
  for (Step& step : steps) {
    if (!step.part) continue;
    parts_[index] = std::make_shared<Program>(*step.part);
    parts_[index]->move(its_device, there);
    step.part = parts_[index++];
  }
}

// Adds a step for each operator and for each part, in order.
void Program::add_steps(const std::vector<Part>& parts) {
  int index = begin;
  for (const Part& one_part : parts) {
    const bool is_in_order =
        one_part.begin >= index && one_part.begin < one_part.end && one_part.end <= end;
    if (!is_in_order) {
      throw UsageError(join_message("a part from boundary ", one_part.begin, " to ", one_part.end,
                                    " in what goes from boundary ", index, " to ", end),
                       "give parts in their order, without overlaps");
    }
    for (; index < one_part.begin; ++index) add_step(index);
    add_part(one_part);
    index = one_part.end;
  }
  for (; index < end; ++index) add_step(index);
}

void Program::add_part(const Part& its_part) {
  auto part_program = std::make_shared<Program>(graph, its_part);
  Step& step = steps.emplace_back();
  step.node = &graph->node(part_program->begin);
  step.index = part_program->begin;
  step.part = part_program;
  Feed& feed = step.feeds.emplace_back();
  feed.kind = Feed::Kind::kList;
  for (const ValueId id : part_program->inputs) feed.slots.push_back(slot_of(id));
  for (const ValueId id : part_program->outputs) step.outputs.push_back(slot_of(id));
  parts_.push_back(std::move(part_program));
}

void Program::add_step(int index) {
  const Node& node = graph->node(index);
  Step& step = steps.emplace_back();
  step.node = &node;
  step.index = index;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    Feed feed;
    feed.argument = i;
    if (node.arguments[i].isTensorList()) feed.kind = Feed::Kind::kList;
    if (node.arguments[i].isOptionalTensorList()) feed.kind = Feed::Kind::kOptionalList;
    if (feed.kind == Feed::Kind::kTensor && node.inputs[i].empty()) continue;
    for (const ValueId id : node.inputs[i]) feed.slots.push_back(slot_of(id));
    step.feeds.push_back(std::move(feed));
  }
  step.devices = devices_of(node);
  for (const ValueId id : node.outputs) step.outputs.push_back(slot_of(id));
}

// Frees each tensor after its last use, except those of the module and the outputs.
void Program::drop_unused() {
  std::unordered_set<std::size_t> seen(output_slots.begin(), output_slots.end());
  for (std::size_t slot = 0; slot < tensors.size(); ++slot) {
    if (tensors[slot].defined()) seen.insert(slot);
  }
  seen.insert(Feed::kNone);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    for (const std::size_t slot : step->outputs) {
      if (seen.insert(slot).second) step->dropped_after.push_back(slot);
    }
    for (const Feed& feed : step->feeds) {
      for (const std::size_t slot : feed.slots) {
        if (seen.insert(slot).second) step->dropped_before.push_back(slot);
      }
    }
  }
}

}  // namespace trireme::graph::detail
