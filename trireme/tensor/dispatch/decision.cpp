// SPDX-License-Identifier: Apache-2.0
// Chooses the strategy of each mesh axis by estimated cost, then derives layouts, redistributions
// and geometry of results from it (docs/design/tensor.md).
#include <trireme/tensor/dispatch/decision.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/dispatch/choose_layouts.h>
#include <trireme/tensor/dispatch/meta_call.h>
#include <trireme/tensor/dispatch/planned_layouts.h>
#include <trireme/tensor/dispatch/rule_checks.h>
#include <trireme/tensor/expert_axis.h>
#include <trireme/tensor/rules/rule_table.h>
#include <trireme/tensor/sequence_attention.h>

#include <algorithm>
#include <limits>
#include <string>

namespace trireme::tensor {
namespace {

thread_local bool gather_in_views = true;

constexpr double kNever = std::numeric_limits<double>::infinity();

std::string describe_layouts(c10::ArrayRef<Layout> layouts) {
  return list_text(layouts, ", ", &Layout::to_string);
}

// Returns the order in which axes shard a dim that several of them shard: the order of the first
// input whose layout has levels, otherwise the order of the mesh.
c10::SmallVector<int, 4> order_of_axes(const Decision& decision, c10::ArrayRef<Layout> current) {
  c10::SmallVector<int, 4> order;
  for (int axis = 0; axis < decision.mesh.num_axes(); ++axis) order.push_back(axis);
  for (const Layout& layout : current) {
    const bool says =
        std::ranges::any_of(layout.placements(), [](const Placement& p) { return p.level() > 0; });
    if (!says) continue;
    std::ranges::stable_sort(order, {}, [&](int axis) { return layout[axis].level(); });
    break;
  }
  return order;
}

// Makes a layout of one placement for each axis; Shards of one dim get levels in `order`.
Layout assemble(const DeviceMesh& mesh, c10::ArrayRef<Placement> placements,
                c10::ArrayRef<int> order) {
  c10::SmallVector<Placement, 4> all(placements.begin(), placements.end());
  c10::SmallVector<int, 8> next_level;
  for (const int axis : order) {
    Placement& placement = all[static_cast<std::size_t>(axis)];
    if (!placement.is_shard()) continue;
    const auto dim = static_cast<std::size_t>(placement.dim());
    if (next_level.size() <= dim) next_level.resize(dim + 1, 0);
    placement = Shard{placement.dim(), next_level[dim]++};
  }
  return Layout(mesh, all);
}

// What is decided together: a whole call, or one position in the lists of a foreach operator.
struct Part {
  Call call;
  std::vector<std::size_t> inputs;   // positions in the whole call
  std::vector<std::size_t> outputs;  // positions in the whole call
  std::vector<Layout> current;       // layouts of the inputs
  std::vector<bool> is_shared;       // inputs that every part has; they stay replicated
};

// What the choice of a strategy depends on, for one part of a call.
struct Choice {
  const OperatorFacts& facts;
  const Call& call;
  c10::ArrayRef<Layout> current;  // layouts of the inputs
  const std::vector<bool>& is_shared;
  const DeviceMesh& mesh;
  const PlannedLayouts* plan = nullptr;

  // Returns the bytes of an input that one rank holds if all axes but `axis` are sharded as they
  // are.
  double bytes_of(int input, int axis) const {
    const at::Tensor& tensor = call.input(input);
    double bytes = static_cast<double>(tensor.numel() * tensor.element_size());
    const auto placements = current[static_cast<std::size_t>(input)].placements();
    for (std::size_t other = 0; other < placements.size(); ++other) {
      const bool cuts = placements[other].is_shard() || placements[other].is_flat_shard();
      if (static_cast<int>(other) != axis && cuts) {
        bytes /= static_cast<double>(mesh.size(static_cast<int>(other)));
      }
    }
    return bytes;
  }

  // Returns true if the plan says how the inputs are sharded.
  bool has_parts() const { return plan != nullptr && !plan->parts.empty(); }

  // Returns what the cost of strategies along one axis depends on.
  AxisInputs inputs_along(int axis) const {
    AxisInputs inputs;
    // Results are taken to be sharded along the other axes as much as the input that is most.
    double cut_elsewhere = 1;
    for (int input = 0; input < call.num_inputs(); ++input) {
      const at::Tensor& tensor = call.input(input);
      const double bytes = bytes_of(input, axis);
      const auto whole = static_cast<double>(tensor.numel() * tensor.element_size());
      if (whole > 0) cut_elsewhere = std::max(cut_elsewhere, whole / bytes);
      inputs.bytes.push_back(bytes);
      inputs.is_written.push_back(facts.writes(call.argument_of(input)));
    }
    for (int output = 0; output < call.num_outputs(); ++output) {
      const at::Tensor& tensor = call.output(output);
      inputs.result_bytes.push_back(
          tensor.defined()
              ? static_cast<double>(tensor.numel() * tensor.element_size()) / cut_elsewhere
              : -1);
    }
    inputs.can_put_off = !facts.returns_view && facts.written.empty();
    return inputs;
  }
};

// Returns true if the placement would shard a tensor along with a FlatShard on another axis, which
// no layout allows.
bool cuts_beside_flat(const Layout& layout, int axis, const Placement& placement) {
  for (int other = 0; other < static_cast<int>(layout.placements().size()); ++other) {
    const Placement& given = layout[other];
    if (other == axis || (!given.is_shard() && !given.is_flat_shard())) continue;
    if (placement.is_flat_shard() || (given.is_flat_shard() && placement.is_shard())) return true;
  }
  return false;
}

// Returns true if the inputs can have the placements of a strategy.
bool fits(const Strategy& strategy, const Choice& choice, int axis) {
  for (int input = 0; input < choice.call.num_inputs(); ++input) {
    const auto index = static_cast<std::size_t>(input);
    const Placement& placement = strategy.inputs[index];
    if (cuts_beside_flat(choice.current[index], axis, placement)) return false;
    if (placement.is_shard() && placement.dim() >= choice.call.input(input).dim()) return false;
    if (choice.is_shared[index] && !placement.is_replicate()) return false;
  }
  return true;
}

Strategy replicate_everywhere(const Call& call, std::size_t num_outputs) {
  Strategy strategy;
  strategy.inputs.assign(static_cast<std::size_t>(call.num_inputs()), Placement(Replicate{}));
  strategy.outputs.assign(std::max<std::size_t>(num_outputs, 1), Placement(Replicate{}));
  return strategy;
}

// Returns the estimated seconds to bring the first result where the plan wants it.
double seconds_to_planned(const Strategy& strategy, const Choice& choice, const AxisInputs& inputs,
                          int axis) {
  if (choice.plan == nullptr || choice.plan->result.empty()) return 0;
  const auto& wanted = choice.plan->result[static_cast<std::size_t>(axis)];
  if (!wanted || inputs.result_bytes.empty() || inputs.result_bytes[0] < 0) return 0;
  return change_seconds(strategy.outputs[0], *wanted, inputs.result_bytes[0], choice.mesh, axis);
}

// Keeps only strategies with the inputs that the plan asks for, which layouts_by_strategy() has
// found among them.
void keep_planned(std::vector<Strategy>& strategies, const Choice& choice, int axis) {
  if (!choice.has_parts() || choice.mesh.size(axis) == 1) return;
  std::erase_if(strategies, [&](const Strategy& strategy) {
    for (std::size_t input = 0; input < choice.current.size(); ++input) {
      if (!is_same_ignoring_level(choice.current[input][axis], strategy.inputs[input])) return true;
    }
    return false;
  });
  if (!strategies.empty()) return;
  throw UsageError(
      join_message("the plan has ", choice.plan->entry, ", and operator ", choice.facts.name,
                   " has no such strategy along axis ", choice.mesh.axis_name(axis)),
      "change plan.operators");
}

// Returns the strategy of the rule that costs least along one axis.
Strategy cheapest(const Choice& choice, const Rule& rule, int axis) {
  std::vector<Strategy> strategies;
  const AxisCall axis_call = {choice.call, choice.mesh.size(axis), choice.current, axis};
  const std::size_t num_outputs = choice.call.num_outputs() > 0
                                      ? static_cast<std::size_t>(choice.call.num_outputs())
                                      : choice.facts.num_returns;
  if (rule.strategies) rule.strategies(axis_call, strategies);
  for (const Strategy& strategy : strategies) {
    check_strategy(choice.facts, choice.call, strategy, num_outputs);
  }
  if (!rule.lists_all) strategies.push_back(replicate_everywhere(choice.call, num_outputs));
  keep_planned(strategies, choice, axis);
  const AxisInputs inputs = choice.inputs_along(axis);
  c10::SmallVector<Placement, 8> placements;
  for (const Layout& layout : choice.current) placements.push_back(layout[axis]);
  const Strategy* best = nullptr;
  double best_cost = kNever;
  for (const Strategy& strategy : strategies) {
    const bool copies_view = strategy.is_copy && choice.facts.returns_view;
    if (!fits(strategy, choice, axis) || (copies_view && !gather_in_views)) continue;
    const double cost = strategy_seconds(strategy, placements, inputs, choice.mesh, axis) +
                        seconds_to_planned(strategy, choice, inputs, axis);
    const bool is_better =
        best == nullptr || choice.has_parts() || strategy.is_preferred == best->is_preferred
            ? cost < best_cost
            : strategy.is_preferred;
    if (is_better) {
      best = &strategy;
      best_cost = cost;
    }
  }
  if (best == nullptr) {
    throw UsageError(join_message("operator ", choice.facts.name, " has no strategy along axis ",
                                  choice.mesh.axis_name(axis),
                                  " for inputs as they are: ", describe_layouts(choice.current)),
                     "redistribute the inputs to Replicate before the call");
  }
  return *best;
}

[[noreturn]] void refuse_without_rule(const OperatorFacts& facts, const InputSlots& inputs) {
  throw UsageError(
      join_message("operator ", facts.name, " has no rule for distributed tensors; it was given ",
                   describe_layouts(inputs)),
      join_message("give it one with trireme::tensor::add_rule(\"", facts.name,
                   "\", …) (docs/guide/rules.md), let its inputs be gathered with "
                   "trireme::tensor::allow_replication(\"",
                   facts.name,
                   "\"), or run that part of the model on whole tensors with "
                   "trireme::run_replicated (docs/guide/tensor-parallel.md)"));
}

// Returns the mesh of the distributed inputs. Throws UsageError where there are two.
DeviceMesh mesh_of(const OperatorFacts& facts, const InputSlots& inputs) {
  const DistributedMeta* first = nullptr;
  for (const InputSlot& input : inputs) {
    if (input.meta == nullptr) continue;
    if (first == nullptr) first = input.meta;
    if (input.meta->layout.mesh_state() != first->layout.mesh_state()) {
      throw UsageError(join_message("operator ", facts.name, " was given tensors of two meshes: [",
                                    first->layout.mesh().to_string(), "] and [",
                                    input.meta->layout.mesh().to_string(), "]"),
                       "arrange ranks that work together on one mesh: give it to distribute_module "
                       "or parallelize for every module; or bring one of the tensors to the "
                       "other's mesh with trireme::tensor::redistribute_between");
    }
  }
  return first->layout.mesh();
}

void refuse_view(const OperatorFacts& facts, const Call& call, const Redistribution& path) {
  throw UsageError(
      join_message("operator ", facts.name, " cannot view a tensor of ", call.input(0).sizes(),
                   call.num_outputs() > 0 ? join_message(" as ", call.output(0).sizes()) : "",
                   " without communication: ", path.to_string()),
      "redistribute the tensor before the view, or let it be gathered into a copy with "
      "trireme::tensor::allow_gather_in_views(true)");
}

// Throws where a tensor that is redistributed for a call would change its shape in place: it is
// redistributed back afterwards, to the shape that it had.
void refuse_other_shape(const OperatorFacts& facts, const Call& call, const Redistribution& path) {
  const bool keeps_shape = !call.is_in_place() || call.num_outputs() == 0 ||
                           !call.output(0).defined() ||
                           call.output(0).sizes() == call.input(0).sizes();
  if (keeps_shape) return;
  throw UsageError(join_message("operator ", facts.name, " cannot change a tensor of ",
                                call.input(0).sizes(), " to ", call.output(0).sizes(),
                                " in place without communication: ", path.to_string()),
                   "redistribute the tensor before, or call the operator that returns a new one");
}

// Sets the layouts of inputs and outputs from the strategies of all axes.
void set_layouts(Decision& decision, const Part& part,
                 const std::vector<Strategy>& strategy_of_axis) {
  const auto order = order_of_axes(decision, part.current);
  for (std::size_t i = 0; i < part.inputs.size(); ++i) {
    c10::SmallVector<Placement, 4> placements;
    for (const Strategy& strategy : strategy_of_axis) placements.push_back(strategy.inputs[i]);
    InputDecision& decided = decision.inputs[part.inputs[i]];
    decided.target = assemble(decision.mesh, placements, order);
    for (std::size_t axis = 0; axis < strategy_of_axis.size(); ++axis) {
      const Placement& now = part.current[i][static_cast<int>(axis)];
      const bool is_moved =
          now.is_shard() && placements[axis].is_shard() && now.dim() != placements[axis].dim();
      decided.stays = decided.stays || (is_moved && strategy_of_axis[axis].is_preferred);
    }
  }
  for (std::size_t i = 0; i < part.outputs.size(); ++i) {
    c10::SmallVector<Placement, 4> placements;
    for (const Strategy& strategy : strategy_of_axis) {
      placements.push_back(strategy.outputs[strategy.outputs.size() == 1 ? 0 : i]);
    }
    OutputDecision& output = decision.outputs[part.outputs[i]];
    output.layout = output.computed = assemble(decision.mesh, placements, order);
  }
}

// Returns the whole call as one part.
std::vector<Part> whole(const Call& call, const std::vector<Layout>& current,
                        std::size_t num_outputs) {
  std::vector<Part> parts;
  Part& part = parts.emplace_back(Part{call, {}, {}, current, {}});
  for (std::size_t i = 0; i < current.size(); ++i) part.inputs.push_back(i);
  for (std::size_t i = 0; i < num_outputs; ++i) part.outputs.push_back(i);
  part.is_shared.resize(current.size());
  return parts;
}

// Returns one part for each position in the lists.
std::vector<Part> by_element(const Call& call, const InputSlots& slots,
                             const std::vector<Layout>& current, std::size_t num_outputs) {
  int num_elements = 0;
  for (const InputSlot& slot : slots) num_elements = std::max(num_elements, slot.element + 1);
  const Layout replicated = Layout::replicated(current.front().mesh());
  std::vector<Part> parts;
  for (int element = 0; element < num_elements; ++element) {
    std::vector<c10::IValue> arguments = call.arguments();
    std::vector<at::Tensor> tensors;
    std::vector<int> argument_of_input;
    Part part = {Call(call.schema(), {}, {}, {}), {}, {}, {}, {}};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const InputSlot& slot = slots[i];
      if (slot.element >= 0 && slot.element != element) continue;
      const at::Tensor& tensor = call.input(static_cast<int>(i));
      tensors.push_back(tensor);
      argument_of_input.push_back(slot.argument);
      part.inputs.push_back(i);
      part.is_shared.push_back(slot.element < 0);
      part.current.push_back(slot.element < 0 ? replicated : current[i]);
      if (slot.element >= 0) {
        arguments[static_cast<std::size_t>(slot.argument)] = c10::List<at::Tensor>({tensor});
      }
    }
    part.call =
        Call(call.schema(), std::move(arguments), std::move(tensors), std::move(argument_of_input));
    if (static_cast<std::size_t>(element) < num_outputs) {
      const auto output = static_cast<std::size_t>(element);
      part.outputs.push_back(output);
      if (call.num_outputs() > element) part.call.set_outputs({call.output(element)});
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

// Sets the redistributions of the inputs whose layouts are not those of the strategy.
void set_paths(Decision& decision, const OperatorFacts& facts,
               const std::vector<Layout>& current_layouts) {
  const Call& call = *decision.call;
  for (std::size_t input = 0; input < decision.inputs.size(); ++input) {
    InputDecision& decided = decision.inputs[input];
    const Layout& current = current_layouts[input];
    if (decided.target == current) continue;
    const at::Tensor& tensor = call.input(static_cast<int>(input));
    decided.path.emplace(tensor.sizes(), tensor.scalar_type(), current, decided.target);
    decision.has_paths = true;
    decision.seconds += decided.path->seconds();
    const int argument = call.argument_of(static_cast<int>(input));
    if (facts.writes(argument)) {
      refuse_other_shape(facts, call, *decided.path);
      decided.back.emplace(tensor.sizes(), tensor.scalar_type(), decided.target, current);
    }
    if (argument == facts.viewed && !decided.path->is_local()) {
      if (!gather_in_views) refuse_view(facts, call, *decided.path);
      decision.gathers_view = true;
    }
  }
}

// Returns the layouts of the inputs that the plan asks for.
std::vector<Layout> planned_inputs(const PlannedLayouts& plan, const OperatorFacts& facts,
                                   const Rule& rule, const Call& call,
                                   const std::vector<Layout>& current, const DeviceMesh& mesh) {
  const std::string name = join_message(facts.name, ", for which the plan has ", plan.entry, ",");
  if (rule.elementwise_lists) {
    throw UsageError(
        join_message("operator ", name, " works on lists element by element and takes no strategy"),
        "name other operators in plan.operators");
  }
  return layouts_by_strategy({name, call, rule.strategies, current, mesh}, plan.parts);
}

// Redistributes the first result if the plan says where it shall lie.
void set_planned_result(Decision& decision, const OperatorFacts& facts, const PlannedLayouts& plan,
                        const std::vector<Layout>& current) {
  if (plan.result.empty()) return;
  const Call& call = *decision.call;
  const auto refuse = [&](const auto&... why) {
    throw UsageError(
        join_message("the plan has ", plan.entry, ", and operator ", facts.name, " ", why...),
        "change plan.operators");
  };
  if (facts.returns_view || !facts.written.empty()) {
    refuse("returns its input or a view of it, whose layout cannot be chosen");
  }
  if (call.num_outputs() == 0 || !call.output(0).defined()) {
    refuse("has a result whose shape is not known before the call");
  }
  const at::Tensor& result = call.output(0);
  OutputDecision& decided = decision.outputs[0];
  c10::SmallVector<Placement, 4> placements;
  for (std::size_t axis = 0; axis < plan.result.size(); ++axis) {
    const auto& wanted = plan.result[axis];
    if (wanted && wanted->is_shard() && wanted->dim() >= result.dim()) {
      refuse("has a result of ", result.sizes(), ", which has no dim ", wanted->dim());
    }
    placements.push_back(wanted.value_or(decided.computed[static_cast<int>(axis)]));
  }
  decided.layout = assemble(decision.mesh, placements, order_of_axes(decision, current));
  if (decided.layout == decided.computed) return;
  decided.path.emplace(result.sizes(), result.scalar_type(), decided.computed, decided.layout);
  decision.seconds += decided.path->seconds();
}

// Sets sizes, strides and dtype of the results. Where they are unknown, and for replicated results
// that are no views, the local result gives them.
void set_geometry(Decision& decision, const OperatorFacts& facts) {
  const Call& call = *decision.call;
  for (std::size_t i = 0; i < decision.outputs.size(); ++i) {
    OutputDecision& decided = decision.outputs[i];
    if (call.num_outputs() == 0 || !call.output(static_cast<int>(i)).defined()) {
      decided.is_from_local = true;
      continue;
    }
    const at::Tensor& output = call.output(static_cast<int>(i));
    decided.geometry.sizes.assign(output.sizes().begin(), output.sizes().end());
    decided.geometry.strides.assign(output.strides().begin(), output.strides().end());
    decided.geometry.offset = output.storage_offset();
    decided.type = output.scalar_type();
    // The geometry of a view follows from that of its base.
    decided.is_view = facts.returns_view && !decision.gathers_view;
    decided.is_from_local = decided.layout.is_replicated() && !decided.is_view;
  }
}

}  // namespace

std::string describe_layouts(const InputSlots& inputs) {
  return list_text(inputs, ", ", [](const InputSlot& input) {
    return join_message(input.tensor->sizes(), " ",
                        input.meta == nullptr ? "plain" : input.meta->layout.to_string());
  });
}

AxisInputs CallAlongAxis::inputs() const {
  const std::vector<Layout> current(static_cast<std::size_t>(call->num_inputs()),
                                    Layout::replicated(mesh));
  const std::vector<bool> is_shared(current.size(), false);
  return Choice{*facts, *call, current, is_shared, mesh}.inputs_along(axis);
}

Strategy CallAlongAxis::decide(c10::ArrayRef<Placement> placements) const {
  const Layout replicated = Layout::replicated(mesh);
  std::vector<Layout> current;
  for (const Placement& placement : placements) {
    current.push_back(replicated.with(axis, placement));
  }
  const std::vector<bool> is_shared(current.size(), false);
  const Choice choice = {*facts, *call, current, is_shared, mesh};
  if (rule == nullptr || rule->elementwise_lists) {
    const auto num_outputs = static_cast<std::size_t>(call->num_outputs());
    return replicate_everywhere(*call, std::max<std::size_t>(num_outputs, facts->num_returns));
  }
  return cheapest(choice, *rule, axis);
}

bool allow_gather_in_views(bool is_allowed) { return std::exchange(gather_in_views, is_allowed); }

c10::SmallVector<std::int64_t, 4> coordinate_here(const DeviceMesh& mesh) {
  c10::SmallVector<std::int64_t, 4> coordinate(static_cast<std::size_t>(mesh.num_axes()), 0);
  if (mesh.contains_this_rank()) std::ranges::copy(mesh.coordinate(), coordinate.begin());
  return coordinate;
}

bool needs_decision(const Rule* rule, const Layout& replicated) {
  if (rule == nullptr) return false;
  const DeviceMesh::State& mesh = *replicated.mesh_state();
  if (rule->kernel != nullptr || has_planned_layouts(mesh)) return true;
  if (!rule->begins_shards) return false;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    if (shards_sequences(mesh, axis) || shards_experts(mesh, axis)) return true;
  }
  return false;
}

std::unique_ptr<Decision> decide(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                 const InputSlots& inputs, c10::ArrayRef<c10::IValue> arguments,
                                 const PlannedLayouts* plan) {
  auto decision = std::make_unique<Decision>();
  decision->mesh = mesh_of(facts, inputs);
  // A rule that was added after the kernel was registered is found here.
  const Rule* const found = facts.rule != nullptr
                                ? facts.rule
                                : find_rule(op.schema().name(), op.schema().overload_name());
  if (found == nullptr) refuse_without_rule(facts, inputs);
  const Rule& rule = *found;
  const Layout replicated = Layout::replicated(decision->mesh);
  std::vector<Layout> current;
  for (const InputSlot& input : inputs) {
    current.push_back(input.meta == nullptr ? replicated : input.meta->layout);
  }
  decision->call.emplace(make_meta_call(op, facts, inputs, arguments));
  Call& call = *decision->call;
  if (!rule.shape_from_local) {
    call.set_outputs(rule.shapes ? rule.shapes(call) : outputs_on_meta(op, facts, call));
    if (rule.shapes) check_shapes(facts, op.schema(), call.outputs().vec());
  }
  const std::size_t num_outputs =
      call.num_outputs() > 0 ? static_cast<std::size_t>(call.num_outputs()) : facts.num_returns;
  decision->inputs.resize(inputs.size());
  decision->outputs.resize(num_outputs);
  const std::vector<Part> parts = rule.elementwise_lists
                                      ? by_element(call, inputs, current, num_outputs)
                                      : whole(call, current, num_outputs);
  decision->has_plan = plan != nullptr;
  bool moves_data = false;
  for (const Part& part : parts) {
    // Each axis sees the placements that the axes before it chose. Otherwise two axes could shard
    // one dim more often than its size divides.
    std::vector<Layout> seen = part.current;
    if (plan != nullptr && !plan->parts.empty()) {
      seen = planned_inputs(*plan, facts, rule, call, current, decision->mesh);
    }
    std::vector<Strategy> strategy_of_axis;
    for (int axis = 0; axis < decision->mesh.num_axes(); ++axis) {
      const Choice choice = {facts, part.call, seen, part.is_shared, decision->mesh, plan};
      const Strategy& chosen = strategy_of_axis.emplace_back(cheapest(choice, rule, axis));
      // A kernel that moves data also does what the kernels do that only compute.
      if (chosen.kernel != nullptr && (chosen.is_copy || !moves_data)) {
        decision->kernel = chosen.kernel;
      }
      moves_data = moves_data || chosen.is_copy;
      if (chosen.is_copy && facts.returns_view) decision->gathers_view = true;
      for (std::size_t i = 0; i < seen.size(); ++i) {
        seen[i] = seen[i].with(axis, chosen.inputs[i]);
      }
    }
    set_layouts(*decision, part, strategy_of_axis);
  }
  if (rule.kernel != nullptr) decision->kernel = rule.kernel;
  set_paths(*decision, facts, current);
  if (plan != nullptr) set_planned_result(*decision, facts, *plan, current);
  set_geometry(*decision, facts);
  for (const InputDecision& input : decision->inputs)
    decision->input_layouts.push_back(input.target);
  for (const OutputDecision& output : decision->outputs) {
    decision->output_layouts.push_back(output.computed);
  }
  if (rule.local_arguments) {
    rule.local_arguments(call, decision->output_layouts, coordinate_here(decision->mesh),
                         decision->local_arguments);
  }
  for (const at::Tensor& input : call.inputs()) decision->input_sizes.push_back(input.sizes());
  for (const at::Tensor& output : call.outputs()) {
    decision->output_sizes.push_back(output.defined() ? output.sizes() : c10::IntArrayRef());
  }
  return decision;
}

}  // namespace trireme::tensor
