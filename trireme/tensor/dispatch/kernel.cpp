// SPDX-License-Identifier: Apache-2.0
// Runs calls on distributed tensors: scans and checks the arguments, finds or makes the decision,
// replaces tensors by local ones, calls the operator, and wraps the results.
#include <trireme/tensor/dispatch/kernel.h>

#include <trireme/base/error.h>
#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/dispatch/decision_cache.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dispatch/plain_inputs.h>
#include <trireme/tensor/dispatch/planned_layouts.h>
#include <trireme/tensor/ivalue_tensors.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/strides.h>

#include <algorithm>

namespace trireme::tensor {
namespace {

[[noreturn]] void refuse_plain_gradient(const OperatorFacts& facts, const InputSlot& slot) {
  throw UsageError(
      join_message("operator ", facts.name, " mixes distributed tensors with a plain tensor of ",
                   slot.tensor->sizes(), " that requires a gradient"),
      "make it distributed too (parallelize converts all parameters of a module; "
      "trireme::distribute one tensor), or detach() it; a module that plan.layouts keep whole is "
      "called within trireme::run_replicated");
}

[[noreturn]] void refuse_plain_write(const OperatorFacts& facts, const InputSlot& slot) {
  throw UsageError(join_message("operator ", facts.name,
                                " would write distributed values into a "
                                "plain tensor of ",
                                slot.tensor->sizes()),
                   "make the tensor with zeros_like, new_zeros or new_empty of a distributed one, "
                   "or distribute it");
}

[[noreturn]] void refuse_distributed_out(const OperatorFacts& facts) {
  throw UsageError(join_message("operator ", facts.name,
                                " would write the result of plain tensors into a distributed one"),
                   "distribute the inputs, or copy the result with copy_ after distributing it");
}

[[noreturn]] void refuse_write_to_copy(const OperatorFacts& facts, const InputSlot& slot) {
  throw UsageError(
      join_message(
          "operator ", facts.name, " would write into a view of ", slot.tensor->sizes(),
          " that had to be gathered: it is a copy, and what it was a view of would not change"),
      "redistribute the tensor before the view, so that the view needs no communication");
}

// Returns true if `strides` order the elements of `local` as its own strides do.
bool is_laid_out(const at::Tensor& local, c10::IntArrayRef strides) {
  const c10::IntArrayRef local_strides = local.strides();
  if (local_strides == strides) return true;
  const c10::IntArrayRef sizes = local.sizes();
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] > 1 && local_strides[dim] != strides[dim]) return false;
  }
  return true;
}

bool has_distributed_meta(const at::Tensor& tensor) {
  return is_wrapper(tensor.unsafeGetTensorImpl());
}

}  // namespace

void add_input(Scan& scan, const at::Tensor& tensor, int argument, int element) {
  if (!tensor.defined()) return;
  const DistributedMeta* meta = has_distributed_meta(tensor) ? &distributed_meta(tensor) : nullptr;
  if (meta != nullptr) {
    if (scan.first == nullptr) scan.first = meta;
    // Inputs on two meshes are not replicated: the call then reaches decide(), which refuses them.
    const bool is_of_one_mesh = meta->layout.mesh_state() == scan.first->layout.mesh_state();
    scan.is_replicated = scan.is_replicated && is_of_one_mesh && meta->layout.is_replicated();
  }
  scan.inputs.push_back({&tensor, meta, argument, element});
}

Scan scan_arguments(const OperatorFacts& facts, const c10::IValue* arguments) {
  Scan scan;
  for (std::uint32_t i = 0; i < facts.num_arguments; ++i) {
    if (facts.is_out[i]) continue;
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      add_input(scan, value.toTensor(), static_cast<int>(i), -1);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      int element = 0;
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) add_input(scan, item.toTensor(), static_cast<int>(i), element);
        ++element;
      }
    }
  }
  return scan;
}

void check_outs(const OperatorFacts& facts, const c10::IValue* arguments) {
  for (const int argument : facts.written) {
    if (!facts.is_out[static_cast<std::size_t>(argument)] || !arguments[argument].isTensor())
      continue;
    const at::Tensor& out = arguments[argument].toTensor();
    const InputSlot slot = {&out, has_distributed_meta(out) ? &distributed_meta(out) : nullptr,
                            argument, -1};
    if (slot.meta == nullptr) refuse_plain_write(facts, slot);
    if (slot.meta->is_copy_of_view) refuse_write_to_copy(facts, slot);
  }
}

void check_tensors(const OperatorFacts& facts, const Scan& scan) {
  for (const InputSlot& slot : scan.inputs) {
    if (slot.meta != nullptr) {
      if (slot.meta->is_copy_of_view && facts.writes(slot.argument)) {
        refuse_write_to_copy(facts, slot);
      }
      continue;
    }
    if (slot.tensor->requires_grad() && at::GradMode::is_enabled()) {
      refuse_plain_gradient(facts, slot);
    }
    if (facts.writes(slot.argument)) refuse_plain_write(facts, slot);
  }
}

bool stays_complete(const OperatorFacts& facts, const Decision& decision, const Scan& scan,
                    std::size_t input) {
  const InputSlot& slot = scan.inputs[input];
  const InputDecision& decided = decision.inputs[input];
  if (slot.meta == nullptr || !decided.path || !slot.meta->is_own) return false;
  const Layout& from = slot.meta->layout;
  const Layout& to = decided.target;
  if (to.has_partial() || (!from.has_partial() && !decided.stays)) return false;
  for (int axis = 0; axis < static_cast<int>(from.placements().size()); ++axis) {
    const bool stays = decided.stays && from[axis].is_shard() && to[axis].is_shard();
    if (!from[axis].is_partial() && !stays && from[axis] != to[axis]) return false;
  }
  // A tensor that the call wrote to or may have returned no longer has the value. A tensor may be
  // among the arguments twice and be written to as only one of them.
  const auto is_written = [&](const InputSlot& other) {
    return other.meta == slot.meta && facts.writes(other.argument);
  };
  return decision.kernel == nullptr && !facts.returns_view && !facts.may_return_input &&
         std::ranges::none_of(scan.inputs, is_written);
}

void keep_complete(const at::Tensor& wrapper, const at::Tensor& part, const Layout& layout) {
  DistributedMeta& meta = distributed_meta(wrapper);
  const auto strides = dense_strides(wrapper.strides(), part.sizes());
  meta.local = is_laid_out(part, strides)
                   ? part
                   : at::empty_strided(part.sizes(), strides, part.options()).copy_(part);
  meta.layout = layout;
}

namespace {

// An out= argument and the distributed tensor given for it.
struct Out {
  int argument;
  at::Tensor wrapper;
};

// Replaces the tensors on the stack by local tensors, redistributed as decided, and keeps what is
// needed after the call.
class Unwrapping {
 public:
  Unwrapping(const OperatorFacts& facts, c10::IValue* arguments, const Scan& scan,
             const Decision* decision)
      : facts_(facts), arguments_(arguments) {
    for (const int argument : facts.written) kept_.push_back(arguments[argument]);
    locals_.reserve(scan.inputs.size());
    for (std::size_t i = 0; i < scan.inputs.size(); ++i) {
      const InputSlot& slot = scan.inputs[i];
      const at::Tensor& local = slot.meta == nullptr ? *slot.tensor : slot.meta->local;
      const bool moves = decision != nullptr && decision->inputs[i].path.has_value();
      locals_.push_back(moves ? (*decision->inputs[i].path)(local, facts.name) : local);
      if (moves && decision->inputs[i].back) returning_.push_back({i, local});
      if (moves && stays_complete(facts, *decision, scan, i)) {
        completed_.emplace_back(i, *slot.tensor);
      }
    }
    put(scan);
    for (std::uint32_t i = 0; i < facts.num_arguments; ++i) {
      if (facts.is_out[i] && arguments[i].isTensor()) open_out(static_cast<int>(i));
    }
  }

  // Copies written tensors that were redistributed back into the memory that they had.
  void write_back(const Decision& decision) const {
    for (const auto& [index, original] : returning_) {
      const at::Tensor back = (*decision.inputs[index].back)(locals_[index], facts_.name);
      if (!back.is_same(original)) original.copy_(back);
    }
  }

  // Keeps reduced and moved values of inputs in the tensors themselves (stays_complete).
  void keep_completed(const Decision& decision) const {
    for (const auto& [index, wrapper] : completed_) {
      const Layout& now = distributed_meta(wrapper).layout;
      if (now == decision.inputs[index].target) continue;  // the same tensor twice
      keep_complete(wrapper, locals_[index], decision.inputs[index].target);
    }
  }

  // Returns a written argument as it was before the call.
  const c10::IValue& kept(int argument) const {
    const auto at = std::ranges::find(facts_.written, argument) - facts_.written.begin();
    return kept_[static_cast<std::size_t>(at)];
  }

  // Returns true if a written tensor was redistributed for the call. It keeps its layout and shape.
  bool returned(const at::Tensor& wrapper) const {
    return std::ranges::any_of(returning_, [&](const auto& entry) {
      return entry.second.is_same(distributed_meta(wrapper).local);
    });
  }

  const c10::SmallVector<Out, 2>& outs() const { return outs_; }

 private:
  // Puts local tensors in the places of the arguments on the stack.
  void put(const Scan& scan) {
    std::size_t i = 0;
    while (i < scan.inputs.size()) {
      const InputSlot slot = scan.inputs[i];
      c10::IValue& value = arguments_[slot.argument];
      if (slot.element < 0) {
        value = locals_[i++];
        continue;
      }
      const bool is_optional = value.isOptionalTensorList();
      c10::List<at::Tensor> tensors;
      c10::List<std::optional<at::Tensor>> optionals;
      const std::size_t length = value.toListRef().size();
      is_optional ? optionals.reserve(length) : tensors.reserve(length);
      for (std::size_t element = 0; element < length; ++element) {
        const bool is_given = i < scan.inputs.size() && scan.inputs[i].argument == slot.argument &&
                              scan.inputs[i].element == static_cast<int>(element);
        at::Tensor local = is_given ? take_local(i++) : at::Tensor();
        if (is_optional) {
          optionals.push_back(local.defined() ? std::optional(std::move(local)) : std::nullopt);
        } else {
          tensors.push_back(std::move(local));
        }
      }
      if (is_optional) {
        value = std::move(optionals);
      } else {
        value = std::move(tensors);
      }
    }
  }

  // Moves the local tensor out where nothing needs it after the call, so that the operator may free
  // or reuse its memory.
  at::Tensor take_local(std::size_t input) {
    if (!returning_.empty() || !completed_.empty()) return locals_[input];
    return std::move(locals_[input]);
  }

  // Lets the local operator write to a new tensor, which finish_out moves into the wrapper.
  void open_out(int argument) {
    const at::Tensor wrapper = arguments_[argument].toTensor();
    outs_.push_back({argument, wrapper});
    arguments_[argument] = at::empty({0}, wrapper.options());
  }

  const OperatorFacts& facts_;
  c10::IValue* arguments_;
  c10::SmallVector<c10::IValue, 4> kept_;
  c10::SmallVector<at::Tensor, 8> locals_;
  c10::SmallVector<std::pair<std::size_t, at::Tensor>, 2> returning_;
  c10::SmallVector<std::pair<std::size_t, at::Tensor>, 2> completed_;
  c10::SmallVector<Out, 2> outs_;
};

void check_local_result(const OperatorFacts& facts, const at::Tensor& local,
                        const OutputDecision& decided) {
  const auto expected =
      local_sizes(decided.geometry.sizes, decided.layout, decided.layout.mesh().coordinate());
  if (local.scalar_type() != decided.type) {
    throw InternalError(
        join_message("operator ", facts.name, " gave a local result of ", local.scalar_type(),
                     " where its rule or LibTorch's meta kernel says ", decided.type),
        "the operator's rule is wrong; please report it, or fix it where it is your own");
  }
  if (local.sizes() == c10::IntArrayRef(expected)) return;
  throw InternalError(
      join_message("operator ", facts.name, " gave a local result of ", local.sizes(),
                   " where the ", "layout ", decided.layout.to_string(), " of ",
                   c10::IntArrayRef(decided.geometry.sizes), " means ", c10::IntArrayRef(expected)),
      "the operator's rule is wrong; please report it, or fix it where it is your own");
}

// Wraps a new tensor. Its strides are those of the rule or of LibTorch's meta kernel, never those
// of the local result. Parts of different sizes may come out in different memory orders: a single
// image is both contiguous and channels-last. Ranks with different strides would then take
// different decisions.
at::Tensor wrap_new(at::Tensor local, const OutputDecision& decided) {
  if (local.numel() == 0 || is_laid_out(local, decided.local_strides)) {
    return wrap(std::move(local), decided.layout, decided.geometry);
  }
  at::Tensor ordered = at::empty_strided(local.sizes(), decided.local_strides, local.options());
  ordered.copy_(local);
  return wrap(std::move(ordered), decided.layout, decided.geometry);
}

}  // namespace

at::Tensor wrap_output(const OperatorFacts& facts, at::Tensor local,
                       const OutputDecision& decided) {
  if (!local.defined()) return local;
  if (decided.path) local = (*decided.path)(local, facts.name);
  if (decided.is_from_local) return wrap_replicated(std::move(local), decided.layout);
  if (!decided.is_complete) {
    // This is the first result of the decision. No other thread uses it, so it may be changed.
    auto& first =
        const_cast<OutputDecision&>(decided);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    check_local_result(facts, local, decided);
    if (!decided.is_view) {
      first.geometry.offset = 0;
      first.local_strides = dense_strides(decided.geometry.strides, local.sizes());
      first.geometry.strides = dense_strides(decided.geometry.strides, decided.geometry.sizes);
    }
    add_example(first.geometry);
    first.is_complete = true;
  }
  if (decided.is_view) return wrap(std::move(local), decided.layout, decided.geometry);
  at::Tensor result = wrap_new(std::move(local), decided);
  distributed_meta(result).is_own = true;
  return result;
}

void follow_local(const at::Tensor& wrapper, const OutputDecision* decided) {
  DistributedMeta& meta = distributed_meta(wrapper);
  if (decided == nullptr || decided->is_from_local) {
    if (wrapper.sizes() != meta.local.sizes() || wrapper.strides() != meta.local.strides()) {
      const Geometry geometry = geometry_of(meta.local);
      replace_local(wrapper, meta.local, meta.layout, geometry);
    }
    return;
  }
  const bool has_same_shape = wrapper.sizes() == c10::IntArrayRef(decided->geometry.sizes) &&
                              wrapper.strides() == c10::IntArrayRef(decided->geometry.strides);
  if (!has_same_shape || meta.layout != decided->layout) {
    replace_local(wrapper, meta.local, decided->layout, decided->geometry);
  }
}

namespace {

// Moves the local result of an out= argument into its wrapper: as a new local tensor where the
// shape changes, otherwise redistributed into the memory that it has.
void finish_out(const Out& out, const at::Tensor& local, const OutputDecision* decided,
                const Layout& replicated) {
  const Layout& layout = decided == nullptr ? replicated : decided->layout;
  const c10::IntArrayRef sizes = decided == nullptr || decided->is_from_local
                                     ? local.sizes()
                                     : c10::IntArrayRef(decided->geometry.sizes);
  DistributedMeta& meta = distributed_meta(out.wrapper);
  if (out.wrapper.sizes() != sizes) {
    Geometry geometry;
    geometry.sizes.assign(sizes.begin(), sizes.end());
    geometry.strides = c10::contiguous_strides(sizes);
    replace_local(out.wrapper, local.contiguous(), layout, geometry);
    return;
  }
  const Redistribution path(sizes, local.scalar_type(), layout, meta.layout);
  meta.local.copy_(path(local, "out"));
}

// Replaces the local results on the stack by distributed tensors.
void wrap_results(const OperatorFacts& facts, torch::jit::Stack& stack,
                  const Unwrapping& unwrapping, const Decision* decision,
                  const Layout& replicated) {
  c10::IValue* results = stack.data() + (stack.size() - facts.num_returns);
  std::size_t output = 0;
  const auto decided = [&](std::size_t index) -> const OutputDecision* {
    if (decision == nullptr) return nullptr;
    return &decision->outputs[std::min(index, decision->outputs.size() - 1)];
  };
  const auto wrapped = [&](at::Tensor local, std::size_t index) -> at::Tensor {
    if (!local.defined() || has_distributed_meta(local)) return local;
    if (decision == nullptr) return wrap_replicated(std::move(local), replicated);
    return wrap_output(facts, std::move(local), *decided(index));
  };
  for (std::uint32_t i = 0; i < facts.num_returns; ++i) {
    c10::IValue& value = results[i];
    const int argument = facts.return_is_argument[i];
    if (argument >= 0) {
      const auto out = std::ranges::find(unwrapping.outs(), argument, &Out::argument);
      if (out != unwrapping.outs().end()) {
        finish_out(*out, value.toTensor(), decided(output), replicated);
      } else if (const c10::IValue& kept = unwrapping.kept(argument);
                 kept.isTensor() && !unwrapping.returned(kept.toTensor())) {
        follow_local(kept.toTensor(), decided(output));
      }
      value = unwrapping.kept(argument);
      ++output;
    } else if (value.isTensor()) {
      value = wrapped(std::move(value).toTensor(), output++);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = std::move(value).toTensorList();
      for (std::size_t element = 0; element < list.size(); ++element) {
        list.set(element, wrapped(list.extract(element), output++));
      }
      value = std::move(list);
    }
  }
}

void count_versions(const OperatorFacts& facts, const Unwrapping& unwrapping) {
  for (const int argument : facts.written) {
    for (const c10::IValue& item : unwrapping.kept(argument).toListRef()) {
      count_version(item.toTensor());
    }
  }
}

// Marks the results as copies that stand for views.
void mark_copies(const OperatorFacts& facts, torch::jit::Stack& stack) {
  for (std::size_t i = stack.size() - facts.num_returns; i < stack.size(); ++i) {
    visit_tensors(stack[i], [](const at::Tensor& result) {
      distributed_meta(result).is_copy_of_view = true;
    });
  }
}

// Makes views of a weight, such as the transposed one of a product, and copies in another dtype
// weights with the same layouts.
void mark_weights(const OperatorFacts& facts, torch::jit::Stack& stack,
                  const PlannedLayouts* layouts) {
  for (std::size_t i = stack.size() - facts.num_returns; i < stack.size(); ++i) {
    visit_tensors(stack[i],
                  [&](const at::Tensor& view) { distributed_meta(view).as_weight = layouts; });
  }
}

// Returns the layouts of the weight that the call views or casts, or null.
const PlannedLayouts* viewed_weight(const OperatorFacts& facts, const Scan& scan) {
  const bool hands_on = facts.hands_on_weight && scan.inputs[0].meta != nullptr;
  return hands_on ? scan.inputs[0].meta->as_weight : nullptr;
}

// In the backward of an in-place operator on a view, autograd writes through as_strided into a
// tensor that it has just made from the gradient. If a view of this tensor would have to be
// gathered, the tensor itself is redistributed instead. Nothing else shares its memory, and no
// layout was promised for it.
bool moves_itself(const OperatorFacts& facts, const Scan& scan, const Decision& decision) {
  if (!decision.gathers_view || facts.name != "aten::as_strided") return false;
  const InputSlot& slot = scan.inputs[0];
  return !slot.tensor->requires_grad() && slot.meta->local.use_count() == 1 &&
         slot.meta->local.storage().use_count() == 1;
}

void move_itself(const OperatorFacts& facts, const InputSlot& slot, const InputDecision& decided) {
  const Geometry geometry = geometry_of(*slot.tensor);
  const at::Tensor moved = (*decided.path)(slot.meta->local, facts.name);
  const auto strides = dense_strides(geometry.strides, moved.sizes());
  const at::Tensor ordered = at::empty_strided(moved.sizes(), strides, moved.options());
  ordered.copy_(moved);
  replace_local(*slot.tensor, ordered, decided.target, geometry);
}

void run_with_decision(const OperatorFacts& facts, const c10::OperatorHandle& op,
                       torch::jit::Stack& stack, const Scan& scan, const Decision& decision) {
  c10::IValue* arguments = stack.data() + (stack.size() - facts.num_arguments);
  const bool is_copy =
      decision.gathers_view || (facts.returns_view && scan.inputs[0].meta != nullptr &&
                                scan.inputs[0].meta->is_copy_of_view);
  const PlannedLayouts* const viewed = viewed_weight(facts, scan);
  const Unwrapping unwrapping(facts, arguments, scan, &decision);
  for (const auto& [position, value] : decision.local_arguments) arguments[position] = value;
  if (decision.kernel != nullptr) {
    LocalCall call(op, stack, &*decision.call, decision.input_layouts, decision.output_layouts,
                   decision.input_sizes, decision.output_sizes);
    decision.kernel(call);
  } else {
    op.callBoxed(stack);
  }
  unwrapping.write_back(decision);
  unwrapping.keep_completed(decision);
  wrap_results(facts, stack, unwrapping, &decision, Layout());
  if (facts.counts_versions) count_versions(facts, unwrapping);
  if (facts.returns_view && is_copy) mark_copies(facts, stack);
  if (viewed != nullptr) mark_weights(facts, stack, viewed);
}

void run_on_replicated(const OperatorFacts& facts, const c10::OperatorHandle& op,
                       torch::jit::Stack& stack, const Scan& scan) {
  const Layout layout = scan.first->layout;  // a copy: the call may free the tensor that has it
  const bool is_copy = facts.returns_view && scan.first->is_copy_of_view;
  c10::IValue* arguments = stack.data() + (stack.size() - facts.num_arguments);
  const PlannedLayouts* const viewed = viewed_weight(facts, scan);
  const Unwrapping unwrapping(facts, arguments, scan, nullptr);
  op.callBoxed(stack);
  wrap_results(facts, stack, unwrapping, nullptr, layout);
  if (facts.counts_versions) count_versions(facts, unwrapping);
  if (is_copy) mark_copies(facts, stack);
  if (viewed != nullptr) mark_weights(facts, stack, viewed);
}

}  // namespace

void run(const OperatorFacts& facts, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::IValue* arguments = stack.data() + (stack.size() - facts.num_arguments);
  const Scan scan = scan_arguments(facts, arguments);
  check_tensors(facts, scan);
  note_view(facts, scan);
  if (facts.has_out) check_outs(facts, arguments);
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveLocal);
  if (scan.first == nullptr) refuse_distributed_out(facts);
  if (notes_plain_inputs()) note_plain_inputs(facts, scan);
  if (scan.is_replicated && !needs_decision(facts.rule, scan.first->layout)) {
    run_on_replicated(facts, op, stack, scan);
    return;
  }
  const c10::ArrayRef<c10::IValue> all(arguments, facts.num_arguments);
  DecisionKey key(facts, scan.inputs, all);
  const CallInProgress in_progress;
  const Decision* decision = find_decision(key);
  if (decision == nullptr || decision->has_plan) {
    const PlannedLayouts* plan = planned_layouts(facts, scan.inputs);
    if (plan != nullptr && !apply_here(*plan, scan.inputs)) {
      plan = nullptr;
      key.leave_out_plan();
      decision = find_decision(key);
    }
    if (decision == nullptr) {
      decision = &keep_decision(key, decide(op, facts, scan.inputs, all, plan));
    }
  }
  if (moves_itself(facts, scan, *decision)) {
    move_itself(facts, scan.inputs[0], decision->inputs[0]);
    run(facts, op, stack);
    return;
  }
  run_with_decision(facts, op, stack, scan, *decision);
}

}  // namespace trireme::tensor
