// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/dry_run.h>

#include <trireme/base/error.h>
#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/composites.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dispatch/kernel.h>
#include <trireme/tensor/dispatch/meta_call.h>
#include <trireme/tensor/dispatch/planned_layouts.h>
#include <trireme/tensor/dry_run/call_flops.h>
#include <trireme/tensor/dry_run/call_trace.h>
#include <trireme/tensor/dry_run/interception.h>
#include <trireme/tensor/dry_run/kept_constants.h>
#include <trireme/tensor/dry_run/known_calls.h>
#include <trireme/tensor/dry_run/results.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/rule_table.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace trireme::tensor {
namespace {

// The innermost dry run of this thread.
thread_local DryRun* current = nullptr;

bool intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  DryRun* const dry_run = DryRun::of_thread();
  return dry_run != nullptr && dry_run->take(op, keys, *stack);
}

c10::DispatchKeySet intercepted_keys() {
  static std::once_flag once;
  std::call_once(once, [] {
    install();
    intercept_below_autograd(intercept);
  });
  return c10::DispatchKeySet(kBelowAutograd);
}

// Meta calls and rules that run within the dry run are not recorded and have no autograd.
struct Aside {
  c10::impl::ExcludeDispatchKeyGuard exclude{c10::DispatchKeySet(kBelowAutograd) |
                                             c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset};
};

std::vector<Exchange> exchanges_of(const std::optional<Redistribution>& path) {
  std::vector<Exchange> exchanges;
  if (!path) return exchanges;
  for (const RedistributionStep& step : path->steps()) add_step(step, exchanges);
  return exchanges;
}

// Returns true for aten::equal, which MultiheadAttention calls with query, key and value. A dry run
// has no values to compare: a tensor counts as equal to itself and as different from others, which
// leads to the general case.
bool asks_whether_equal(const c10::OperatorHandle& op, const OperatorFacts& facts) {
  return op.operator_name().name == "aten::equal" && facts.num_returns == 1;
}

// Returns the number of ranks that share the work: the product of the axes along which an input or
// an output is sharded.
std::int64_t ranks_at_work(const Decision& decision) {
  std::int64_t ranks = 1;
  for (int axis = 0; axis < decision.mesh.num_axes(); ++axis) {
    const auto cuts = [axis](const Layout& layout) {
      return layout[axis].is_shard() || layout[axis].is_flat_shard();
    };
    const bool is_cut = std::ranges::any_of(decision.input_layouts, cuts) ||
                        std::ranges::any_of(decision.output_layouts, cuts);
    if (is_cut) ranks *= decision.mesh.size(axis);
  }
  return ranks;
}

// Notes the autograd node whose backward makes the call, or the number of the next one in forward.
void record_node(DryRunCall& record) {
  if (const auto node = torch::autograd::get_current_node()) {
    record.node = node->name();
    record.sequence = node->sequence_nr();
  } else {
    record.sequence = at::sequence_number::peek();
  }
}

}  // namespace

struct DryRun::Impl {
  // Where a tensor comes from.
  struct Origin {
    std::string name;
    int call = -1;
  };

  // An input that is redistributed for a call and stays so (stays_complete).
  struct Completion {
    at::Tensor tensor;
    Layout layout;
    Origin origin;
  };
  using Completed = std::vector<Completion>;

  Mode mode = Mode::kInstead;
  AfterEach after_each;
  BeforeRefusal before_refusal;
  DryRun* outer = nullptr;
  std::vector<DryRunCall> calls;
  // Facts by operator; null for operators without a kernel for distributed tensors.
  std::unordered_map<c10::OperatorName, std::shared_ptr<OperatorFacts>> known;
  // Origins by the storage of the local tensor. `alive` keeps the storages, so that no new one can
  // get the address of an old one.
  std::unordered_map<const c10::StorageImpl*, Origin> origins;
  std::vector<at::Tensor> alive;
  // A tensor over some storage, and its number among all values.
  struct Value {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    int number = -1;
  };
  // Storages of plain tensors. The references keep their addresses from being used again.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> plain_memories;
  mutable std::unordered_map<const c10::StorageImpl*, std::vector<Value>> values;
  mutable int num_values = 0;
  int axis_to_decide = -1;  // along which calls are kept; -1: they are not
  std::vector<std::shared_ptr<const CallAlongAxis>> along_axis;
  KnownCalls known_calls;
  KeptConstants constants;
  CallTrace* trace = nullptr;  // that calls are added to

  [[noreturn]] void refuse_value(const OperatorFacts& facts, const Scan& scan,
                                 const char* what) const;
  const OperatorFacts* facts_of(const c10::OperatorHandle& op);
  Origin& origin_of(const at::Tensor& tensor);
  DryRunTensor described(const at::Tensor& tensor) const;
  int value_of(const at::Tensor& tensor) const;

  bool is_answered(const c10::OperatorHandle& op, const OperatorFacts& facts) const;
  std::shared_ptr<const CallOutcome> outcome_of(const c10::OperatorHandle& op,
                                                const OperatorFacts& facts, const Scan& scan,
                                                c10::ArrayRef<c10::IValue> arguments);
  CallOutcome predict(const c10::OperatorHandle& op, const OperatorFacts& facts, const Scan& scan,
                      c10::ArrayRef<c10::IValue> arguments, const PlannedLayouts* plan);
  void keep(const c10::OperatorHandle& op, const Rule* rule, const Call& call,
            const DeviceMesh& mesh, CallOutcome& outcome);
  void predict_replicated(const c10::OperatorHandle& op, const OperatorFacts& facts,
                          const Scan& scan, const Rule* rule, Call& call, Prediction& prediction);
  void record_inputs(const OperatorFacts& facts, const c10::FunctionSchema& schema,
                     const Scan& scan, const CallOutcome& outcome, DryRunCall& record);
  void record_outputs(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments,
                      const Prediction& prediction, DryRunCall& record);
  void remember(const OperatorFacts& facts, const Scan& scan, const std::vector<at::Tensor>& made);
  Completed completed(const OperatorFacts& facts, const Scan& scan, const Decision* decision);
};

void DryRun::Impl::refuse_value(const OperatorFacts& facts, const Scan& scan,
                                const char* what) const {
  if (before_refusal) before_refusal();
  throw UsageError(
      join_message("operator ", facts.name, " on ", describe_layouts(scan.inputs), " gives ", what,
                   ", which is known only once it has run"),
      "leave what needs it (item(), nonzero(), printing) out of forward, which is run without "
      "values here");
}

// Decomposed operators and libraries without kernels for distributed tensors have no facts: their
// calls pass unrecorded.
const OperatorFacts* DryRun::Impl::facts_of(const c10::OperatorHandle& op) {
  const auto [found, is_new] = known.try_emplace(op.operator_name());
  if (is_new) {
    const std::string& name = op.operator_name().name;
    const bool is_taken_apart =
        op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
        !is_kept_whole(name);
    if (!is_taken_apart && op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse2)) {
      found->second = std::make_shared<OperatorFacts>(op.schema());
      found->second->follow(find_rule(name, op.operator_name().overload_name));
    }
  }
  return found->second.get();
}

DryRun::Impl::Origin& DryRun::Impl::origin_of(const at::Tensor& tensor) {
  const at::Tensor& part = distributed_meta(tensor).local;
  const auto [found, is_new] = origins.try_emplace(part.storage().unsafeGetStorageImpl());
  if (is_new) alive.push_back(part);
  return found->second;
}

DryRunTensor DryRun::Impl::described(const at::Tensor& tensor) const {
  DryRunTensor recorded;
  recorded.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  recorded.strides.assign(tensor.strides().begin(), tensor.strides().end());
  recorded.dtype = tensor.scalar_type();
  recorded.requires_grad = tensor.requires_grad();
  recorded.is_plain = !is_wrapper(tensor);
  if (recorded.is_plain) {
    if (tensor.has_storage()) recorded.memory = tensor.storage().unsafeGetStorageImpl();
    return recorded;
  }
  recorded.given = distributed_meta(tensor).layout;
  recorded.layout = recorded.given;
  const at::Tensor& part = distributed_meta(tensor).local;
  if (!part.has_storage()) return recorded;
  recorded.value = value_of(tensor);
  const auto found = origins.find(part.storage().unsafeGetStorageImpl());
  if (found == origins.end()) return recorded;
  recorded.name = found->second.name;
  recorded.made_by = found->second.call;
  return recorded;
}

int DryRun::Impl::value_of(const at::Tensor& tensor) const {
  const at::Tensor& part = distributed_meta(tensor).local;
  if (!part.has_storage()) return -1;
  std::vector<Value>& of_storage = values[part.storage().unsafeGetStorageImpl()];
  for (const Value& value : of_storage) {
    if (tensor.sizes() == value.sizes && tensor.strides() == value.strides) return value.number;
  }
  of_storage.push_back(
      {.sizes = tensor.sizes().vec(), .strides = tensor.strides().vec(), .number = num_values});
  return num_values++;
}

void DryRun::Impl::keep(const c10::OperatorHandle& op, const Rule* rule, const Call& call,
                        const DeviceMesh& mesh, CallOutcome& outcome) {
  if (axis_to_decide < 0) return;
  outcome.along_axis =
      std::make_shared<CallAlongAxis>(CallAlongAxis{.facts = known.at(op.operator_name()),
                                                    .rule = rule,
                                                    .call = call,
                                                    .mesh = mesh,
                                                    .axis = axis_to_decide});
}

void DryRun::Impl::predict_replicated(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                      const Scan& scan, const Rule* rule, Call& call,
                                      Prediction& prediction) {
  prediction.replicated = scan.first->layout;
  prediction.is_copy_of_view = facts.returns_view && scan.first->is_copy_of_view;
  if (rule != nullptr && rule->shapes) {
    prediction.outputs = rule->shapes(call);
    return;
  }
  // Results that are no tensors, such as sizes, may still be known from shapes alone.
  torch::jit::Stack stack(call.arguments().begin(), call.arguments().end());
  try {
    prediction.outputs = outputs_on_meta(op, facts, call);
    const bool gives_values = std::ranges::any_of(op.schema().returns(), [](const auto& returned) {
      const auto kind = returned.type()->kind();
      return kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType;
    });
    if (!gives_values) return;
    op.callBoxed(stack);
  } catch (const InternalError&) {
    refuse_value(facts, scan, "a result whose shape no rule says");
  } catch (const c10::NotImplementedError&) {
    refuse_value(facts, scan, "a value");
  }
  for (const c10::IValue& value : stack) {
    if (!value.isTensor() && !value.isTensorList()) prediction.values.push_back(value);
  }
}

bool DryRun::Impl::is_answered(const c10::OperatorHandle& op, const OperatorFacts& facts) const {
  return mode == Mode::kInstead && asks_whether_equal(op, facts);
}

// Returns what an earlier call has shown, if it was like this one.
std::shared_ptr<const CallOutcome> DryRun::Impl::outcome_of(const c10::OperatorHandle& op,
                                                            const OperatorFacts& facts,
                                                            const Scan& scan,
                                                            c10::ArrayRef<c10::IValue> arguments) {
  const PlannedLayouts* plan = planned_layouts(facts, scan.inputs);
  if (plan != nullptr && !apply_here(*plan, scan.inputs)) plan = nullptr;
  // The answer depends on which tensors are compared, and out= on what has the right shape.
  // Backward of an embedding follows how its table was divided in forward (RowCuts).
  const bool follows_forward = facts.name.find("embedding") != std::string::npos;
  const bool is_kept =
      mode == Mode::kInstead && !facts.has_out && !follows_forward && !is_answered(op, facts);
  std::optional<CallWords> words;
  if (is_kept) words = words_of(op, scan, arguments, plan);
  if (words) {
    if (auto known_call = known_calls.find(*words)) return known_call;
  }
  auto outcome = std::make_shared<CallOutcome>(predict(op, facts, scan, arguments, plan));
  if (outcome->prediction.decision != nullptr) {
    for (const InputDecision& decided : outcome->prediction.decision->inputs) {
      outcome->exchanges.push_back(exchanges_of(decided.path));
      outcome->back.push_back(exchanges_of(decided.back));
    }
  }
  if (words) known_calls.keep(std::move(*words), outcome);
  return outcome;
}

CallOutcome DryRun::Impl::predict(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                  const Scan& scan, c10::ArrayRef<c10::IValue> arguments,
                                  const PlannedLayouts* plan) {
  CallOutcome outcome;
  Prediction& prediction = outcome.prediction;
  if (facts.hands_on_weight && scan.inputs[0].meta != nullptr) {
    prediction.as_weight = scan.inputs[0].meta->as_weight;
  }
  const Rule* const rule = facts.rule != nullptr
                               ? facts.rule
                               : find_rule(op.schema().name(), op.schema().overload_name());
  const bool depends_on_values = rule != nullptr && rule->shape_from_local;
  if (is_answered(op, facts)) {
    const c10::ArrayRef<InputSlot> tensors = scan.inputs;
    prediction.values.emplace_back(tensors[0].tensor->is_same(*tensors[1].tensor));
  } else if (mode == Mode::kInstead && depends_on_values) {
    refuse_value(facts, scan, "a value, or a shape that depends on values");
  }
  if (scan.is_replicated && !needs_decision(rule, scan.first->layout)) {
    Call call = make_meta_call(op, facts, scan.inputs, arguments);
    if (depends_on_values) {
      prediction.replicated = scan.first->layout;
    } else {
      predict_replicated(op, facts, scan, rule, call, prediction);
      call.set_outputs(prediction.outputs);
    }
    outcome.flops = flops_of(facts, rule, call);
    keep(op, rule, call, scan.first->layout.mesh(), outcome);
    return outcome;
  }
  prediction.decision = decide(op, facts, scan.inputs, arguments, plan);
  const Decision& decision = *prediction.decision;
  const Call& call = *decision.call;
  prediction.outputs.assign(call.outputs().begin(), call.outputs().end());
  if (mode == Mode::kInstead && prediction.outputs.empty() && facts.num_returns > 0 &&
      !is_answered(op, facts)) {
    refuse_value(facts, scan, "a shape that depends on values");
  }
  prediction.is_copy_of_view =
      decision.gathers_view || (facts.returns_view && scan.inputs[0].meta != nullptr &&
                                scan.inputs[0].meta->is_copy_of_view);
  outcome.gathers_view = decision.gathers_view;
  outcome.flops = flops_of(facts, rule, call);
  keep(op, rule, call, decision.mesh, outcome);
  outcome.ranks_at_work = ranks_at_work(decision);
  const auto coordinate = coordinate_here(decision.mesh);
  const DecidedCall decided = {call, decision.input_layouts, decision.output_layouts, coordinate,
                               decision.kernel};
  if (rule->imbalance) outcome.imbalance = rule->imbalance(decided);
  if (decision.kernel != nullptr && rule->exchanges) rule->exchanges(decided, outcome.inside);
  return outcome;
}

void DryRun::Impl::record_inputs(const OperatorFacts& facts, const c10::FunctionSchema& schema,
                                 const Scan& scan, const CallOutcome& outcome, DryRunCall& record) {
  const Decision* const decision = outcome.prediction.decision.get();
  record.name = facts.name;
  record_node(record);
  record.inside = outcome.inside;
  record.gathers_view = outcome.gathers_view;
  record.flops = outcome.flops;
  record.ranks_at_work = outcome.ranks_at_work;
  record.imbalance = outcome.imbalance;
  for (std::size_t i = 0; i < scan.inputs.size(); ++i) {
    const InputSlot& slot = scan.inputs[i];
    DryRunTensor recorded = described(*slot.tensor);
    recorded.argument = schema.arguments()[static_cast<std::size_t>(slot.argument)].name();
    if (slot.element >= 0) recorded.argument += join_message("[", slot.element, "]");
    if (recorded.is_plain) {
      recorded.given = Layout::replicated(scan.first->layout.mesh());
      recorded.is_number = slot.tensor->unsafeGetTensorImpl()->is_wrapped_number();
      if (recorded.memory != nullptr) {
        plain_memories.try_emplace(recorded.memory, slot.tensor->storage().getWeakStorageImpl());
      }
    }
    recorded.layout = recorded.given;
    if (decision != nullptr) {
      recorded.layout = decision->inputs[i].target;
      recorded.exchanges = outcome.exchanges[i];
      recorded.back = outcome.back[i];
    }
    record.inputs.push_back(std::move(recorded));
  }
}

void DryRun::Impl::record_outputs(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments,
                                  const Prediction& prediction, DryRunCall& record) {
  for (std::size_t i = 0; i < prediction.outputs.size(); ++i) {
    const at::Tensor& global = prediction.outputs[i];
    if (!global.defined()) continue;
    DryRunTensor& recorded = record.outputs.emplace_back();
    recorded.sizes.assign(global.sizes().begin(), global.sizes().end());
    recorded.dtype = global.scalar_type();
    recorded.given = recorded.layout = prediction.layout(i);
    if (prediction.decision != nullptr && i < prediction.decision->outputs.size()) {
      const OutputDecision& decided = prediction.decision->outputs[i];
      if (decided.path) recorded.given = decided.computed;
      recorded.exchanges = exchanges_of(decided.path);
    }
    const int argument = i < facts.num_returns ? facts.return_is_argument[i] : -1;
    const c10::IValue* const written =
        argument < 0 ? nullptr : &arguments[static_cast<std::size_t>(argument)];
    if (written == nullptr || !written->isTensor() || !is_wrapper(written->toTensor())) continue;
    const Layout& kept = distributed_meta(written->toTensor()).layout;
    if (!facts.is_out[static_cast<std::size_t>(argument)]) {
      if (prediction.is_redistributed_back(argument)) recorded.layout = recorded.given = kept;
    } else if (written->toTensor().sizes() == global.sizes()) {
      // An out= tensor that has the right shape keeps its layout.
      recorded.layout = kept;
      recorded.exchanges =
          exchanges_of(Redistribution(global.sizes(), recorded.dtype, recorded.given, kept));
    }
  }
}

void DryRun::Impl::remember(const OperatorFacts& facts, const Scan& scan,
                            const std::vector<at::Tensor>& made) {
  const auto number = static_cast<int>(calls.size()) - 1;
  for (const int argument : facts.written) {
    for (const InputSlot& slot : scan.inputs) {
      if (slot.argument == argument && slot.meta != nullptr) origin_of(*slot.tensor).call = number;
    }
  }
  const bool follows = facts.returns_view && !scan.inputs.empty() && scan.inputs[0].meta != nullptr;
  const std::string name = follows ? origin_of(*scan.inputs[0].tensor).name : std::string();
  for (const at::Tensor& tensor : made) origin_of(tensor) = {.name = name, .call = number};
  std::vector<DryRunTensor>& outputs = calls.back().outputs;
  if (outputs.size() != made.size()) return;  // what is written has the value of its argument
  for (std::size_t i = 0; i < made.size(); ++i) outputs[i].value = value_of(made[i]);
}

// Returns the inputs that keep what they were redistributed to. They get other local tensors, so
// their origins have to be carried over.
DryRun::Impl::Completed DryRun::Impl::completed(const OperatorFacts& facts, const Scan& scan,
                                                const Decision* decision) {
  Completed all;
  for (std::size_t i = 0; decision != nullptr && i < scan.inputs.size(); ++i) {
    if (!stays_complete(facts, *decision, scan, i)) continue;
    const at::Tensor& tensor = *scan.inputs[i].tensor;
    all.push_back({tensor, decision->inputs[i].target, origin_of(tensor)});
  }
  return all;
}

DryRun::DryRun(Mode mode, AfterEach after_each)
    : impl_(std::make_unique<Impl>()), include_(intercepted_keys()) {
  impl_->mode = mode;
  impl_->after_each = std::move(after_each);
  impl_->outer = std::exchange(current, this);
}

DryRun::~DryRun() { current = impl_->outer; }

DryRun* DryRun::of_thread() noexcept { return current; }

DryRun::Mode DryRun::mode() const noexcept { return impl_->mode; }

void DryRun::before_refusal(BeforeRefusal call) { impl_->before_refusal = std::move(call); }

void DryRun::give_name(const at::Tensor& tensor, std::string name) {
  impl_->origin_of(tensor).name = std::move(name);
}

void DryRun::trace_calls(CallTrace* trace) { impl_->trace = trace; }

void DryRun::keep_calls_along(int axis) { impl_->axis_to_decide = axis; }

const std::vector<std::shared_ptr<const CallAlongAxis>>& DryRun::calls_along_axis() const noexcept {
  return impl_->along_axis;
}

const std::vector<DryRunCall>& DryRun::calls() const noexcept { return impl_->calls; }

std::vector<DryRunCall> DryRun::take_calls() noexcept { return std::move(impl_->calls); }

DryRunTensor DryRun::describe(const at::Tensor& tensor) const { return impl_->described(tensor); }

at::Tensor DryRun::moved(const at::Tensor& tensor, const Layout& layout, std::string_view what) {
  const Aside aside;
  DryRunCall record;
  record.name = what;
  record_node(record);
  record.is_asked_for = true;
  if (impl_->trace != nullptr) impl_->trace->give_up("forward redistributes a tensor");
  if (impl_->axis_to_decide >= 0) impl_->along_axis.emplace_back();
  DryRunTensor recorded = impl_->described(tensor);
  const Redistribution path(tensor.sizes(), tensor.scalar_type(), recorded.given, layout);
  recorded.layout = layout;
  recorded.exchanges = exchanges_of(path);
  DryRunTensor result = recorded;
  result.given = layout;
  result.exchanges.clear();
  record.inputs.push_back(std::move(recorded));
  record.outputs.push_back(std::move(result));
  at::Tensor part;
  if (impl_->mode == Mode::kInstead) {
    const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta);
    part = meta_part(at::empty_strided(tensor.sizes(), tensor.strides(), options), layout);
    impl_->calls.push_back(std::move(record));
    impl_->origins[part.storage().unsafeGetStorageImpl()] = {
        .name = "", .call = static_cast<int>(impl_->calls.size()) - 1};
    impl_->alive.push_back(part);
  } else {
    part = path(distributed_meta(tensor).local, what);
    impl_->calls.push_back(std::move(record));
  }
  if (impl_->after_each) impl_->after_each(impl_->calls.back(), {});
  return part;
}

bool DryRun::take(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack) {
  const OperatorFacts* const facts = impl_->facts_of(op);
  const std::size_t num_arguments = op.schema().arguments().size();
  // Copies of the arguments, since results replace them on the stack.
  const std::vector<c10::IValue> arguments(stack.end() - static_cast<std::ptrdiff_t>(num_arguments),
                                           stack.end());
  const Scan scan = facts == nullptr ? Scan() : scan_arguments(*facts, arguments.data());
  if (scan.first == nullptr) {
    KeptConstants* const constants = KeptConstants::of_thread();
    return facts != nullptr && constants != nullptr && impl_->mode == Mode::kInstead &&
           constants->take(op, *facts, scan, keys, stack);
  }
  check_tensors(*facts, scan);
  if (facts->has_out) check_outs(*facts, arguments.data());
  note_view(*facts, scan);
  if (impl_->trace != nullptr) impl_->trace->begin(op, *facts, scan, arguments);
  DryRunCall record;
  Impl::Completed completed;
  {
    const Aside aside;
    const auto outcome = impl_->outcome_of(op, *facts, scan, arguments);
    const Prediction& prediction = outcome->prediction;
    if (impl_->axis_to_decide >= 0) impl_->along_axis.push_back(outcome->along_axis);
    impl_->record_inputs(*facts, op.schema(), scan, *outcome, record);
    impl_->record_outputs(*facts, arguments, prediction, record);
    impl_->calls.push_back(std::move(record));
    completed = impl_->completed(*facts, scan, prediction.decision.get());
    if (impl_->mode == Mode::kInstead) {
      for (const Impl::Completion& completion : completed) {
        if (distributed_meta(completion.tensor).layout == completion.layout) continue;
        keep_complete(completion.tensor, meta_part(completion.tensor, completion.layout),
                      completion.layout);
        if (impl_->trace != nullptr) impl_->trace->follow(completion.tensor);
      }
      impl_->remember(*facts, scan, give_results(*facts, op.schema(), stack, prediction));
    }
  }
  const std::size_t num_results = op.schema().returns().size();
  if (impl_->trace != nullptr) {
    impl_->trace->end(
        c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - num_results), num_results));
  }
  if (impl_->mode == Mode::kBeside) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBelowAutograd),
                       &stack);
  }
  for (const Impl::Completion& completion : completed)
    impl_->origin_of(completion.tensor) = completion.origin;
  if (impl_->after_each) {
    impl_->after_each(
        impl_->calls.back(),
        c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - num_results), num_results));
  }
  return true;
}

}  // namespace trireme::tensor
