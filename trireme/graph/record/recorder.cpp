// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/recorder.h>

#include <trireme/base/error.h>
#include <trireme/graph/record/arguments.h>
#include <trireme/graph/record/modules.h>
#include <trireme/graph/record/refusals.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/dry_run/results.h>
#include <trireme/tensor/fallback.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

// Two kinds of tensors occur. Inputs, parameters and what is computed from them are distributed
// tensors over meta tensors (stand-ins). Tensors that the code makes from numbers have values, and
// operators on them run.
namespace trireme::graph::detail {
namespace {

// The key of a mode above autograd and below that of tensor/per_call, for which LibTorch has no
// kernels. Inputs that a strategy redistributes are recorded after the redistribution.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

thread_local Recorder* current = nullptr;

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  if (current == nullptr) {
    op.redispatchBoxed(below, stack);
  } else {
    current->record(op, below, *stack);
  }
}

c10::DispatchKey registered_key() {
  tensor::install_fallback<&on_operator>(kKey);
  return kKey;
}

}  // namespace

Recorder::Recorder(Graph& graph, const Layout& replicated)
    : graph_(&graph), replicated_(replicated), uses_(graph) {}

Recorder::Recording::Recording(Recorder& recorder) : include_(registered_key()) {
  TRIREME_CHECK(current == nullptr);
  current = &recorder;
  recorder.last_sequence_ = at::sequence_number::peek();
}

Recorder::Recording::~Recording() { current = nullptr; }

Recorder* Recorder::of_thread() noexcept { return current; }

void Recorder::mark(const at::Tensor& tensor, std::string_view name) {
  const auto is_taken = [this](const std::string& wanted) {
    return std::ranges::find(graph_->modules, wanted, &ModuleState::path) !=
               graph_->modules.end() ||
           std::ranges::find(graph_->marks, wanted, &Mark::name) != graph_->marks.end();
  };
  std::string path(name);
  for (int number = 1; is_taken(path); ++number) path = join_message(name, ".", number);
  graph_->marks.push_back({.name = std::move(path),
                           .node = graph_->num_nodes(),
                           .value = tensor.defined() ? find(tensor) : kNoValue,
                           .module = {}});
}

ValueId Recorder::find(const at::Tensor& tensor) const {
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  return found == known_.end() ? kNoValue : found->second.value;
}

ValueId Recorder::value_of_memory(const void* memory) const {
  const auto found = memories_.find(memory);
  return found == memories_.end() ? kNoValue : found->second.value;
}

ValueId Recorder::add_value(const at::Tensor& tensor, Value value) {
  const auto id = static_cast<ValueId>(graph_->values.size());
  value.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  value.strides.assign(tensor.strides().begin(), tensor.strides().end());
  value.dtype = tensor.scalar_type();
  value.requires_grad = tensor.requires_grad();
  if (value.object == kNoValue) value.object = id;
  if (value.memory == kNoValue) value.memory = id;
  graph_->values.push_back(std::move(value));
  const tensor::DryRun* const dry_run = tensor::DryRun::of_thread();
  const bool is_in_dry_run = dry_run != nullptr && tensor::is_wrapper(tensor);
  call_.push_back(is_in_dry_run ? dry_run->describe(tensor).made_by : -1);
  depends_on_random_.push_back(false);
  if (!tensor::is_wrapper(tensor) && tensor.has_storage()) {
    const c10::Storage& storage = tensor.storage();
    memories_.try_emplace(storage.unsafeGetStorageImpl(),
                          Memory{storage.getWeakStorageImpl(), graph_->values.back().memory});
  }
  known_.insert_or_assign(
      tensor.unsafeGetTensorImpl(),
      Known{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), id});
  return id;
}

ValueId Recorder::add(const at::Tensor& tensor, ValueKind kind, std::vector<std::string> names) {
  Value value;
  value.kind = kind;
  value.name = names.front();
  if (kind == ValueKind::kParameter || kind == ValueKind::kBuffer) value.names = std::move(names);
  return add_value(tensor, std::move(value));
}

// Forward has not ended, so an operator without parameters can only be described by what ran
// before.
std::string Recorder::where(const Call& call) const {
  std::string text = "operator " + call.node.name();
  const auto touched = touched_module(uses_.of(call.node));
  if (touched) return touched->empty() ? text : join_message(text, " of module ", *touched);
  return text + after();
}

std::string Recorder::after() const { return last_place_.empty() ? "" : ", after " + last_place_; }

// Adds the given tensors to an error. LibTorch's message on a wrong shape or dtype has only
// numbers.
void Recorder::refuse_failed(const Call& call, std::string_view what) const {
  std::string given;
  const auto& arguments = call.op.schema().arguments();
  for (std::size_t i = 0; i < call.node.inputs.size(); ++i) {
    for (const ValueId id : call.node.inputs[i]) {
      if (id == kNoValue) continue;
      const Value& value = graph_->value(id);
      given += join_message(given.empty() ? ", given " : ", ", arguments[i].name(), " = ",
                            value.name, " (", value.dtype, " ", at::IntArrayRef(value.sizes), ")");
    }
  }
  detail::refuse_failed(where(call) + given, what);
}

// -- before the call ---------------------------------------------------------------------------

// Returns the value of an argument. A plain tensor that is not known becomes a constant.
ValueId Recorder::value_of_argument(const at::Tensor& tensor, const Call& call) {
  if (!tensor.defined()) return kNoValue;
  const bool is_stand_in = tensor::is_wrapper(tensor);
  if (!is_stand_in && tensor.is_meta()) refuse_meta(where(call), tensor);
  const ValueId known = find(tensor);
  if (known != kNoValue) {
    const bool is_read = !overwrites(call.op) && viewed(call.op, call.arguments) == nullptr;
    if (!is_stand_in && is_read && is_unwritten(known)) make_constant(known, tensor);
    return known;
  }
  if (is_stand_in) refuse_unseen(where(call), tensor);
  Value value;
  value.kind = ValueKind::kConstant;
  value.name = join_message("constant ", graph_->values.size());
  value.constant = tensor;
  return add_value(tensor, std::move(value));
}

// Returns true for memory that no operator has written to. If an operator reads it, the code has
// filled it through data_ptr, as torch::tensor does with a std::vector.
bool Recorder::is_unwritten(ValueId id) const {
  const Value& value = graph_->value(id);
  if (value.kind != ValueKind::kResult || value.object != id || value.view_of != kNoValue) {
    return false;
  }
  const std::string& name = graph_->node(value.node).op.operator_name().name;
  if (!name.starts_with("aten::empty") && !name.starts_with("aten::new_empty")) return false;
  const auto is_written = [&](const Node& node) {
    return std::ranges::any_of(node.writes, [&](const Write& write) {
      return graph_->value(write.after).memory == value.memory;
    });
  };
  return std::ranges::none_of(graph_->nodes, is_written);
}

// Turns the result of an allocation into a constant with its present values.
void Recorder::make_constant(ValueId id, const at::Tensor& tensor) {
  Value& value = graph_->values[static_cast<std::size_t>(id)];
  Node& made_by = graph_->nodes[static_cast<std::size_t>(value.node)];
  std::ranges::replace(made_by.outputs, id, kNoValue);
  made_by.bytes = 0;
  value.kind = ValueKind::kConstant;
  value.name = join_message("constant ", id);
  value.node = -1;
  value.constant = tensor.detach().clone();
}

void Recorder::read_arguments(Call& call) {
  for (const c10::IValue& argument : call.arguments) {
    call.node.arguments.push_back(without_tensors(argument));
    std::vector<ValueId>& ids = call.node.inputs.emplace_back();
    visit_tensors(argument, [&](const at::Tensor& tensor) {
      call.has_stand_ins = call.has_stand_ins || tensor::is_wrapper(tensor);
      if (argument.isTensor() && !tensor.defined()) return;
      ids.push_back(value_of_argument(tensor, call));
    });
  }
}

// Handles tensors with values that meet stand-ins in one call. If such a tensor is written to, or
// requires a gradient, it loses its values and becomes a stand-in too.
void Recorder::check_arguments(const Call& call) {
  const std::vector<std::size_t> written = arguments_written(call.op.schema(), call.arguments);
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const bool is_written = std::ranges::find(written, i) != written.end();
    visit_tensors(call.arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor::is_wrapper(tensor)) return;
      const bool is_ours = graph_->value(find(tensor)).kind != ValueKind::kConstant;
      if (is_written && !is_ours) refuse_write(where(call), tensor);
      if (!call.has_stand_ins || (!is_written && !tensor.requires_grad())) return;
      if (!is_ours) refuse_foreign_parameter(where(call), tensor);
      stand_in(tensor);
    });
  }
  const bool is_random = std::ranges::any_of(call.node.inputs, [this](const auto& ids) {
    return std::ranges::any_of(ids, [this](const ValueId id) {
      return id != kNoValue && depends_on_random_[static_cast<std::size_t>(id)];
    });
  });
  const auto& schema = call.op.schema();
  if (is_random && !schema.returns().empty() && !returns_tensors(schema)) {
    refuse_value(where(call), "gives a value that random numbers went into");
  }
}

// Turns a tensor, and the base that it is a view of, into a tensor without values.
void Recorder::stand_in(const at::Tensor& tensor) const {
  if (tensor.is_view()) {
    const at::Tensor base(tensor._base());
    if (!tensor::is_wrapper(base)) stand_in(base);
  }
  const tensor::Geometry geometry = tensor::dense_geometry(tensor.sizes(), tensor.strides());
  const at::Tensor global =
      at::empty_strided(tensor.sizes(), geometry.strides,
                        at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta));
  tensor::convert_in_place(tensor, tensor::meta_part(global, replicated_), replicated_, geometry);
}

// -- the call and after ------------------------------------------------------------------------

// A torch::autograd::Function creates an autograd node between two recorded operators, which shows
// as a gap in the sequence numbers.
void Recorder::check_sequence(const std::string& where) const {
  if (at::sequence_number::peek() != last_sequence_) refuse_function(where);
}

void Recorder::run(Call& call, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  is_random_ = !call.has_stand_ins && call.op.hasTag(at::Tag::nondeterministic_seeded);
  flops_ = 0;
  call.node.grad_mode = at::GradMode::is_enabled();
  call.node.autocast = AutocastState::now();
  try {
    call.op.redispatchBoxed(below, &stack);
  } catch (const Error& error) {
    refuse_failed(call, error.what());
  } catch (const c10::Error& error) {
    refuse_failed(call, error.what_without_backtrace());
  }
  call.node.is_random = is_random_;
  call.node.flops = flops_;
}

// Finds out whose memory a result lies in, and what it is a view of.
void Recorder::place_in_memory(const at::Tensor& tensor, const Call& call, Value& value) {
  const c10::IValue* const argument = viewed(call.op, call.arguments);
  ValueId of = kNoValue;
  if (tensor.is_view()) {
    const at::Tensor its_base(tensor._base());
    of = find(its_base);
    // The base was made within the operator and has no value; its views share memory with each
    // other.
    if (of == kNoValue) {
      const auto next = static_cast<ValueId>(graph_->values.size());
      Known base = {c10::weak_intrusive_ptr<c10::TensorImpl>(its_base.getIntrusivePtr()), next};
      const auto [found, is_new] =
          bases_.try_emplace(its_base.unsafeGetTensorImpl(), std::move(base));
      if (!is_new) value.memory = found->second.value;
      return;
    }
  } else if (argument != nullptr && argument->isTensor()) {
    of = find(argument->toTensor());
  }
  if (of == kNoValue) return;
  value.memory = graph_->value(of).memory;
  value.view_of = of;
  for (const std::vector<ValueId>& ids : call.node.inputs) {
    for (const ValueId id : ids) {
      if (id != kNoValue && graph_->value(id).memory == value.memory) {
        value.view_of = id;
        return;
      }
    }
  }
}

ValueId Recorder::add_result(const at::Tensor& tensor, const Call& call, Value value) {
  value.kind = ValueKind::kResult;
  value.node = graph_->num_nodes();
  value.name = join_message("result of ", call.node.name(), " (operator ", value.node, ")");
  const ValueId id = add_value(tensor, std::move(value));
  if (tensor::is_wrapper(tensor)) return id;
  bool is_random = is_random_;
  for (const std::vector<ValueId>& ids : call.node.inputs) {
    for (const ValueId input : ids) {
      is_random =
          is_random || (input != kNoValue && depends_on_random_[static_cast<std::size_t>(input)]);
    }
  }
  depends_on_random_.back() = is_random;
  return id;
}

void Recorder::read_writes(Call& call) {
  for (const std::size_t argument : arguments_written(call.op.schema(), call.arguments)) {
    visit_tensors(call.arguments[argument], [&](const at::Tensor& tensor) {
      const ValueId before = tensor.defined() ? find(tensor) : kNoValue;
      if (before == kNoValue) return;
      Value after;
      after.object = graph_->value(before).object;
      after.memory = graph_->value(before).memory;
      after.view_of = graph_->value(before).view_of;
      call.node.writes.push_back({before, add_result(tensor, call, std::move(after))});
    });
  }
}

ValueId Recorder::value_of_output(const at::Tensor& tensor, Call& call) {
  if (!tensor.defined()) return kNoValue;
  const ValueId known = find(tensor);
  if (known != kNoValue) return known;
  Value value;
  place_in_memory(tensor, call, value);
  const bool is_new_memory = value.memory == kNoValue;
  const ValueId id = add_result(tensor, call, std::move(value));
  if (is_new_memory) call.node.bytes += graph_->value(id).bytes();
  return id;
}

void Recorder::read_outputs(Call& call, const torch::jit::Stack& stack) {
  for (const c10::IValue& value : torch::jit::last(stack, call.op.schema().returns().size())) {
    const bool is_first = call.node.outputs.empty();
    if (call.has_stand_ins && is_first && value.isTensor() && !value.toTensor().defined()) {
      refuse_value(where(call), "gives a tensor whose shape depends on values");
    }
    visit_tensors(value, [&](const at::Tensor& tensor) {
      call.node.outputs.push_back(value_of_output(tensor, call));
    });
  }
}

void Recorder::record(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                      torch::jit::Stack& stack) {
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  Call call = {.op = op, .arguments = arguments.vec(), .node = Node(op)};
  read_arguments(call);
  const std::string& name = op.operator_name().name;
  if (torch::autograd::get_current_graph_task_id() != -1 || name == "aten::_backward") {
    refuse_gradient(where(call));
  }
  check_sequence(where(call));
  check_arguments(call);
  run(call, below, stack);
  read_writes(call);
  read_outputs(call, stack);
  const std::uint64_t begin = std::exchange(last_sequence_, at::sequence_number::peek());
  // A call without results and writes, such as a comparison of sizes, leaves no node.
  if (call.node.outputs.empty() && call.node.writes.empty()) return;
  if (const auto module = touched_module(uses_.take(call.node))) {
    last_place_ = join_message(call.node.name(), module->empty() ? "" : " of module ", *module,
                               " (operator ", graph_->num_nodes(), ")");
  }
  sequence_.push_back(begin);
  graph_->nodes.push_back(std::move(call.node));
}

// -- after all ---------------------------------------------------------------------------------

int Recorder::node_of_sequence(std::uint64_t number) const {
  if (number >= last_sequence_) return -1;
  const auto after = std::ranges::upper_bound(sequence_, number);
  return static_cast<int>(after - sequence_.begin()) - 1;
}

void Recorder::finish(const std::vector<at::Tensor>& results) {
  check_sequence("the end of forward");
  for (const at::Tensor& result : results) {
    if (!result.defined()) {
      throw UsageError(join_message("capture: forward returned an undefined tensor as result ",
                                    graph_->results.size()),
                       "return the tensors that are there alone");
    }
    ValueId id = find(result);
    if (id == kNoValue) {
      if (tensor::is_wrapper(result)) refuse_unseen("the end of forward", result);
      Value value;
      value.kind = ValueKind::kConstant;
      value.name = join_message("constant ", graph_->values.size());
      value.constant = result;
      id = add_value(result, std::move(value));
    }
    graph_->results.push_back(id);
  }
}

}  // namespace trireme::graph::detail
