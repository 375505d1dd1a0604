// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/per_call/intercept.h>

#include <trireme/base/error.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/choose_layouts.h>
#include <trireme/tensor/dispatch/composites.h>
#include <trireme/tensor/dispatch/decision_cache.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dispatch/meta_call.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/fallback.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/rule_table.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::tensor {
namespace {

// Scores are [batch, classes, …] or [classes]. A target of class numbers is placed as by nll_loss,
// whose arguments have the same names. A target of class probabilities has the shape of the scores.
void cross_entropy(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const at::Tensor& scores = call.input(0);
  if (call.input(1).sizes() != scores.sizes()) {
    find_rule("aten::nll_loss_forward", "")->strategies(axis, strategies);
    return;
  }
  const std::int64_t classes = scores.dim() == 1 ? 0 : 1;
  const bool is_reduced = call.integer(call.position("reduction")) != at::Reduction::None;
  for (std::int64_t dim = 0; dim < scores.dim(); ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "self", cut);
    place(strategy, call, "target", cut);
    if (dim == classes) place(strategy, call, "weight", Shard{0});
    const bool is_in_loss = !is_reduced && dim != classes;
    const auto place_in_loss = static_cast<int>(dim < classes ? dim : dim - 1);
    strategy.outputs = {is_in_loss ? Placement(Shard{place_in_loss}) : Placement(Partial{})};
  }
}

void dropout(const AxisCall& axis, std::vector<Strategy>& strategies) {
  for (std::int64_t dim = 0; dim < axis.call.input(0).dim(); ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    strategies.push_back(alike(axis.call, cut, cut));
  }
}

// Returns the strategies of cross_entropy_loss and dropout; null for other operators. For any
// other composite operator, the first operator that it calls gets the strategy.
const StrategiesOf* strategies_of_composite(std::string_view name) {
  static const std::map<std::string_view, StrategiesOf> all = {
      {"aten::cross_entropy_loss", cross_entropy}, {"aten::dropout", dropout}};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

// The key of a mode above autograd: composite operators arrive whole, and autograd records the
// redistribution of the inputs. The other keys without kernels in LibTorch are taken: DeferredInit
// marks parameters sharded over data ranks, and Fake intercepts operators below autograd.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// What is known of an operator. Valid until rules change.
struct Known {
  explicit Known(const c10::OperatorHandle& op) : facts(op.schema()) {
    const std::string& name = op.schema().name();
    of_composite = strategies_of_composite(name);
    if (of_composite != nullptr) return;
    is_taken_apart = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                     !is_kept_whole(name);
    if (!is_taken_apart) facts.follow(find_rule(name, op.schema().overload_name()));
  }

  bool is_factory() const {
    return facts.rule != nullptr && std::string_view(facts.rule->family) == "factories";
  }

  OperatorFacts facts;
  const StrategiesOf* of_composite = nullptr;
  bool is_taken_apart = false;
};

// The layouts that the inputs of a call shall have; nullopt leaves the call unchanged. It keeps the
// mesh alive, because layouts of the mesh are part of the cache key.
struct Choice {
  DeviceMesh mesh;
  std::optional<std::vector<Layout>> layouts;
};

struct OfThread {
  PendingStrategy* waiting = nullptr;
  int num_cutting = 0;
  const std::string* composite = nullptr;  // outermost composite operator in progress
  std::uint64_t version = 0;               // of the rules and the links that choices were made with
  std::unordered_map<c10::OperatorHandle, Known> operators;
  std::map<std::vector<std::uint64_t>, Choice> choices;

  bool is_strategy_waiting() const { return waiting != nullptr && !waiting->is_taken; }

  void forget_if_outdated() {
    const std::uint64_t now = rules_version() + axis_links_version();
    if (version == now) return;
    operators.clear();
    choices.clear();
    version = now;
  }
};

OfThread& of_thread() {
  thread_local OfThread state;
  return state;
}

constexpr std::size_t kMostChoices = 16384;

// The tensors of a call.
struct Inputs {
  InputSlots slots;
  const at::Tensor* first = nullptr;  // the first distributed tensor
  bool has_dims = false;
  bool has_one_mesh = true;

  Inputs(const OperatorFacts& facts, const c10::IValue* arguments)
      : slots(scan_arguments(facts, arguments).inputs) {
    for (const InputSlot& slot : slots) {
      has_dims = has_dims || slot.tensor->dim() > 0;
      if (slot.meta == nullptr) continue;
      if (first == nullptr) first = slot.tensor;
      has_one_mesh = has_one_mesh &&
                     slot.meta->layout.mesh_state() == distributed_meta(*first).layout.mesh_state();
    }
  }

  std::vector<Layout> layouts() const {
    const Layout replicated = Layout::replicated(distributed_meta(*first).layout.mesh());
    std::vector<Layout> all;
    for (const InputSlot& slot : slots) {
      all.push_back(slot.meta == nullptr ? replicated : slot.meta->layout);
    }
    return all;
  }

  std::vector<bool> are_parameters() const {
    std::vector<bool> all;
    for (const InputSlot& slot : slots) {
      all.push_back(slot.tensor->is_leaf() && slot.tensor->requires_grad());
    }
    return all;
  }
};

// A call on its way through this kernel.
struct Passing {
  OfThread& thread;
  const c10::OperatorHandle& op;
  const Known& known;
  const Inputs& inputs;
  c10::ArrayRef<c10::IValue> arguments;

  std::string name() const {
    return thread.composite == nullptr ? known.facts.name
                                       : known.facts.name + " (of " + *thread.composite + ")";
  }
};

// Under autocast an operator may get dtypes that do not go together before they are cast. Meta
// tensors of floating point therefore all get one dtype.
std::vector<c10::IValue> of_one_type(c10::ArrayRef<c10::IValue> arguments, at::DeviceType device) {
  std::vector<c10::IValue> all(arguments.begin(), arguments.end());
  if (!at::autocast::is_autocast_enabled(device)) return all;
  for (c10::IValue& value : all) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor tensor = value.toTensor();
    if (!at::isFloatingType(tensor.scalar_type()) || tensor.dim() == 0) continue;
    value = at::empty_strided(tensor.sizes(), tensor.strides(),
                              at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
  }
  return all;
}

// Returns the call on meta tensors, with outputs where the rule can give them.
Call described(const Passing& passing) {
  const OperatorFacts& facts = passing.known.facts;
  const at::DeviceType device = passing.inputs.first->device().type();
  Call call = make_meta_call(passing.op, facts, passing.inputs.slots,
                             of_one_type(passing.arguments, device));
  if (passing.known.of_composite == nullptr && !facts.rule->shape_from_local) {
    call.set_outputs(facts.rule->shapes ? facts.rule->shapes(call)
                                        : outputs_on_meta(passing.op, facts, call));
  }
  return call;
}

// Chooses by a strategy or, if it is null, by data parallelism.
Choice choose(const Passing& passing, const OperatorStrategy* strategy) {
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  const Call call = described(passing);
  const std::vector<Layout> current = passing.inputs.layouts();
  const DeviceMesh mesh = current.front().mesh();
  const StrategiesOf& strategies = passing.known.of_composite != nullptr
                                       ? *passing.known.of_composite
                                       : passing.known.facts.rule->strategies;
  const OpenCall open = {passing.name(), call, strategies, current, mesh};
  if (strategy != nullptr) return {mesh, layouts_by_strategy(open, *strategy)};
  return {mesh, layouts_by_batch(open, passing.inputs.are_parameters())};
}

std::vector<std::uint64_t> words_of(const Passing& passing, const OperatorStrategy* strategy) {
  const DecisionKey key(passing.known.facts, passing.inputs.slots, passing.arguments);
  std::vector<std::uint64_t> words = key.words();
  if (strategy == nullptr) {
    for (const bool is_parameter : passing.inputs.are_parameters()) words.push_back(is_parameter);
    return words;
  }
  for (const std::vector<std::int64_t>& tuple : *strategy) {
    words.insert(words.end(), tuple.begin(), tuple.end());
    words.push_back(tuple.size());
  }
  words.push_back(strategy->size() + 1);
  return words;
}

// Returns the cached choice for this call, made if necessary.
const Choice& chosen(const Passing& passing, const OperatorStrategy* strategy) {
  auto& known = passing.thread.choices;
  std::vector<std::uint64_t> words = words_of(passing, strategy);
  const auto found = known.find(words);
  if (found != known.end()) return found->second;
  Choice choice = choose(passing, strategy);
  if (known.size() >= kMostChoices) known.clear();
  return known.emplace(std::move(words), std::move(choice)).first->second;
}

void refuse_write(const Passing& passing, const InputSlot& slot, const Layout& layout) {
  throw UsageError(
      join_message("operator ", passing.name(), " writes to a tensor of ", slot.tensor->sizes(),
                   " that lies as ", slot.meta->layout.to_string(), ", and its strategy wants ",
                   layout.to_string(), ": what is written would not reach it"),
      "redistribute the tensor first, or use the operator that returns its result");
}

// Returns an input in the layout that was chosen.
at::Tensor moved(const Passing& passing, const InputSlot& slot, const Layout& layout) {
  const at::Tensor& tensor = *slot.tensor;
  if (slot.meta == nullptr) {
    // A plain tensor that requires a gradient is left for the operator to refuse.
    const bool stays = layout.is_replicated() || tensor.requires_grad();
    return stays ? tensor : distribute(tensor, layout);
  }
  if (slot.meta->layout == layout) return tensor;
  if (passing.known.facts.writes(slot.argument)) refuse_write(passing, slot, layout);
  at::Tensor result = redistribute(tensor, layout);
  if (passing.known.facts.returns_view) distributed_meta(result).is_copy_of_view = true;
  return result;
}

void replace_element(c10::IValue& list, int element, const at::Tensor& tensor) {
  const auto index = static_cast<std::size_t>(element);
  if (list.isTensorList()) {
    c10::List<at::Tensor> tensors = list.toTensorList().copy();
    tensors.set(index, tensor);
    list = std::move(tensors);
  } else {
    c10::List<std::optional<at::Tensor>> tensors = list.toOptionalTensorList().copy();
    tensors.set(index, tensor);
    list = std::move(tensors);
  }
}

// Calls the operator on inputs in these layouts.
void call_on(const Passing& passing, const std::vector<Layout>& layouts, torch::jit::Stack& stack) {
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    all.push_back(moved(passing, passing.inputs.slots[i], layouts[i]));
  }
  c10::IValue* arguments = stack.data() + (stack.size() - passing.known.facts.num_arguments);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const InputSlot slot = passing.inputs.slots[i];
    c10::IValue& value = arguments[slot.argument];
    if (slot.element < 0) {
      value = all[i];
    } else {
      replace_element(value, slot.element, all[i]);
    }
  }
  passing.op.callBoxed(stack);
}

void check_can_be_cut(const Passing& passing) {
  const OperatorFacts& facts = passing.known.facts;
  if (passing.known.of_composite != nullptr) return;
  if (facts.rule == nullptr) {
    throw UsageError(join_message("operator ", passing.name(),
                                  " has no rule for distributed tensors, which says how its inputs "
                                  "can be cut, and was given the strategy ",
                                  trireme::to_string(passing.thread.waiting->strategy())),
                     "give it a rule (docs/guide/rules.md), or call it without a strategy");
  }
  if (facts.rule->elementwise_lists) {
    throw UsageError(join_message("operator ", passing.name(),
                                  " works on lists element by element and takes no strategy"),
                     "call the operator for single tensors");
  }
}

// Returns true if the pending strategy is not meant for this operator.
bool is_passed_over(const Passing& passing) {
  const Known& known = passing.known;
  if (known.is_factory()) return true;
  // Such as the transpose of a weight before its product, whose strategy has more tuples.
  if (known.facts.returns_view && passing.thread.waiting->strategy().size() != 1) return true;
  // Parts of a composite operator that compute nothing.
  return passing.thread.composite != nullptr && known.of_composite == nullptr &&
         (known.facts.rule == nullptr || known.facts.returns_view);
}

// Returns true if the data-parallel default leaves an operator unchanged.
bool follows_inputs(const Known& known) {
  const OperatorFacts& facts = known.facts;
  if (!facts.written.empty() || facts.returns_view || known.is_factory()) return true;
  if (known.of_composite != nullptr) return false;
  return facts.rule == nullptr || facts.rule->elementwise_lists || facts.rule->shape_from_local;
}

// Returns the layouts that the inputs shall have; null leaves the call unchanged.
const std::vector<Layout>* layouts_for(const Passing& passing) {
  OfThread& thread = passing.thread;
  if (thread.is_strategy_waiting()) {
    PendingStrategy& waiting = *thread.waiting;
    if (!passing.inputs.has_dims) return nullptr;
    if (passing.inputs.first == nullptr) {
      waiting.has_seen_plain = true;
      return nullptr;
    }
    if (is_passed_over(passing)) return nullptr;
    waiting.is_taken = true;
    if (!passing.inputs.has_one_mesh) return nullptr;  // the operator refuses it
    check_can_be_cut(passing);
    return &*chosen(passing, &waiting.strategy()).layouts;
  }
  if (thread.num_cutting == 0 || passing.inputs.first == nullptr || !passing.inputs.has_one_mesh ||
      follows_inputs(passing.known)) {
    return nullptr;
  }
  const Choice& choice = chosen(passing, nullptr);
  return choice.layouts ? &*choice.layouts : nullptr;
}

// Records the outermost composite operator that is in progress, for messages.
class TakingApart {
 public:
  TakingApart(OfThread& thread, const std::string& name)
      : thread_(thread), before_(thread.composite) {
    if (before_ == nullptr) thread.composite = &name;
  }
  ~TakingApart() { thread_.composite = before_; }
  TakingApart(const TakingApart&) = delete;
  TakingApart& operator=(const TakingApart&) = delete;

 private:
  OfThread& thread_;
  const std::string* before_;
};

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  OfThread& thread = of_thread();
  const bool is_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (is_backward || (!thread.is_strategy_waiting() && thread.num_cutting == 0)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  const Known& known = thread.operators.try_emplace(op, op).first->second;
  if (known.is_taken_apart) {
    const TakingApart composite(thread, known.facts.name);
    op.redispatchBoxed(below, stack);
    return;
  }
  const c10::ArrayRef<c10::IValue> arguments(
      stack->data() + (stack->size() - known.facts.num_arguments), known.facts.num_arguments);
  const Inputs inputs(known.facts, arguments.data());
  const Passing passing = {thread, op, known, inputs, arguments};
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  if (const std::vector<Layout>* layouts = layouts_for(passing)) {
    call_on(passing, *layouts, *stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

// Called when a scope begins and not for each operator: what is cached may be in use in between.
c10::DispatchKey start_intercepting() {
  install_fallback<&intercept>(kKey);
  OfThread& thread = of_thread();
  if (thread.composite == nullptr) thread.forget_if_outdated();
  return kKey;
}

}  // namespace

PendingStrategy::PendingStrategy(OperatorStrategy strategy)
    : strategy_(std::move(strategy)),
      outer_(of_thread().waiting),
      intercepted_(start_intercepting()) {
  of_thread().waiting = this;
}

PendingStrategy::~PendingStrategy() { of_thread().waiting = outer_; }

BatchSharding::BatchSharding() : intercepted_(start_intercepting()) {
  of_thread().num_cutting += 1;
}

BatchSharding::~BatchSharding() { of_thread().num_cutting -= 1; }

}  // namespace trireme::tensor
