// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/einsum_rule.h>

#include <trireme/tensor/ivalue_tensors.h>
#include <trireme/tensor/rules/sizes.h>

#include <algorithm>
#include <optional>

namespace trireme::tensor {
namespace {

// Returns true if no output has another dtype than these inputs. A sum of values that were rounded
// to another dtype is not the rounded sum.
bool keeps_type(const Call& call, const std::vector<int>& inputs) {
  return std::ranges::all_of(inputs, [&](int input) {
    const at::ScalarType type = call.input(input).scalar_type();
    return type != at::kBool && std::ranges::all_of(call.outputs(), [&](const at::Tensor& output) {
             return !output.defined() || output.scalar_type() == type;
           });
  });
}

Strategy partial_together(const Call& call, const std::vector<int>& together) {
  Strategy strategy;
  for (int i = 0; i < call.num_inputs(); ++i) {
    strategy.inputs.push_back(is_one_of(together, i) ? Placement(Partial{})
                                                     : Placement(Replicate{}));
  }
  strategy.outputs.push_back(Partial{});
  return strategy;
}

// Returns true if some rank may hold nothing of an input under that strategy.
bool may_be_empty(const Strategy& strategy, const AxisCall& axis) {
  const std::int64_t most_parts = axis.layouts[0].mesh().size();
  for (int i = 0; i < axis.call.num_inputs(); ++i) {
    const Placement& placement = strategy.inputs[static_cast<std::size_t>(i)];
    if (placement.is_shard() && axis.call.input(i).size(placement.dim()) < most_parts) return true;
  }
  return false;
}

// A tensor that the operator writes to must keep its layout.
bool is_possible(const Strategy& strategy, const Call& call) {
  return !call.is_in_place() || strategy.inputs.front() == strategy.outputs.front();
}

// Lets inputs keep their placement along this axis if the call does not read their values.
void leave_as_they_are(Strategy& strategy, const AxisCall& axis, const Indices& indices) {
  for (int i = 0; i < axis.call.num_inputs(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    const Placement& current = axis.layouts[index][axis.axis];
    const bool is_shape = is_one_of(indices.shape_only, i) &&
                          strategy.inputs[index].is_replicate() && current.is_partial();
    if (is_shape || is_one_of(indices.unread, i)) strategy.inputs[index] = current;
  }
}

}  // namespace

Rule einsum_rule(std::function<Indices(const Call&)> indices_of, const char* family,
                 LocalKernel kernel) {
  const auto strategies = [indices_of = std::move(indices_of), kernel](const AxisCall& axis,
                                                                       std::vector<Strategy>& all) {
    const Call& call = axis.call;
    Indices indices = indices_of(call);
    if (indices.terms.inputs.empty()) return;
    if (!keeps_type(call, indices.terms.linear)) indices.terms.linear.clear();
    std::vector<Strategy> made;
    add_strategies(call, indices.terms, made);
    if (!indices.together.empty() && keeps_type(call, indices.together)) {
      made.push_back(partial_together(call, indices.together));
    }
    // The general strategy that replicates everything would also gather inputs that are not read.
    if (!indices.unread.empty() || !indices.shape_only.empty()) {
      Strategy& whole = made.emplace_back();
      whole.inputs.assign(static_cast<std::size_t>(call.num_inputs()), Placement(Replicate{}));
      whole.outputs.push_back(Replicate{});
    }
    for (Strategy& strategy : made) {
      if (!is_possible(strategy, call)) continue;
      strategy.kernel = kernel;
      if (kernel == nullptr && may_be_empty(strategy, axis)) strategy.kernel = run_unless_empty;
      leave_as_they_are(strategy, axis, indices);
      all.push_back(std::move(strategy));
    }
  };
  Rule rule;
  rule.strategies = strategies;
  rule.family = family;
  return rule;
}

Rule with_local_sizes(Rule rule, const char* argument_name) {
  rule.local_arguments = [argument_name](const Call& call, c10::ArrayRef<Layout> outputs,
                                         c10::IntArrayRef coordinate,
                                         std::vector<std::pair<int, c10::IValue>>& replaced) {
    const auto sizes = local_sizes(call.output(0).sizes(), outputs[0], coordinate);
    replaced.emplace_back(call.position(argument_name), as_list(sizes));
  };
  return rule;
}

Rule with_shapes(Rule rule, std::function<std::vector<at::Tensor>(const Call&)> shapes) {
  rule.shapes = std::move(shapes);
  return rule;
}

std::string letters_for(std::int64_t num_dims) { return leading_letters(num_dims, num_dims); }

std::string letters_except(std::int64_t num_dims, c10::IntArrayRef dims) {
  std::string letters = letters_for(num_dims);
  for (const std::int64_t dim : dims) {
    if (!letters.empty()) letters[static_cast<std::size_t>(wrapped_dim(dim, num_dims))] = '.';
  }
  return letters;
}

std::string leading_letters(std::int64_t num_leading, std::int64_t num_dims) {
  std::string letters;
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    letters.push_back(dim < num_leading ? static_cast<char>('A' + dim) : '.');
  }
  return letters;
}

Contraction same_letters(const Call& call, const std::string& letters) {
  Contraction terms;
  terms.inputs.assign(static_cast<std::size_t>(call.num_inputs()), {letters});
  terms.outputs.assign(static_cast<std::size_t>(call.num_outputs()), {letters});
  return terms;
}

bool has_empty_part(const LocalCall& call) {
  for (int i = 0; i < call.call().num_inputs(); ++i) {
    const c10::IntArrayRef sizes = call.input_sizes(i);
    const Layout& layout = call.input_layout(i);
    const bool has_elements = std::ranges::find(sizes, 0) == sizes.end();
    if (!has_elements || layout.is_replicated() || layout.has_flat_shard()) continue;
    const auto local = local_sizes(sizes, layout, layout.mesh().coordinate());
    if (std::ranges::find(local, 0) != local.end()) return true;
  }
  return false;
}

at::Device device_of(LocalCall& call) {
  std::optional<at::Device> device;
  for (int position = 0; position < call.call().num_arguments(); ++position) {
    visit_tensors(call.argument(position), [&](const at::Tensor& tensor) {
      if (!device && tensor.defined()) device = tensor.device();
    });
  }
  return device.value_or(at::kCPU);
}

c10::SmallVector<std::int64_t, 5> local_output_sizes(const LocalCall& call, int output) {
  const Layout& layout = call.output_layout(output);
  return local_sizes(call.output_sizes(output), layout, layout.mesh().coordinate());
}

at::Tensor output_of_empty_part(LocalCall& call, int output) {
  const at::Tensor& global = call.call().output(output);
  if (!global.defined()) return {};
  // Several Partials of one layout commute, so any of them gives the neutral value.
  PartialOp op = PartialOp::kSum;
  for (const Placement& placement : call.output_layout(output).placements()) {
    if (placement.is_partial()) op = placement.op();
  }
  const auto options = at::TensorOptions().dtype(global.dtype()).device(device_of(call));
  return neutral_values(local_output_sizes(call, output), options, op);
}

void run_unless_empty(LocalCall& call) {
  if (!has_empty_part(call)) {
    call.call_operator();
    return;
  }
  if (call.call().is_in_place()) {
    call.give({call.argument(0)});
    return;
  }
  std::vector<c10::IValue> results;
  const bool is_list =
      call.call().schema().returns().front().type()->kind() == c10::TypeKind::ListType;
  c10::List<at::Tensor> list;
  for (int output = 0; output < call.call().num_outputs(); ++output) {
    const at::Tensor given = output_of_empty_part(call, output);
    if (is_list) {
      list.push_back(given);
    } else {
      results.emplace_back(given);
    }
  }
  if (is_list) results.emplace_back(std::move(list));
  call.give(std::move(results));
}

void write_unless_empty(LocalCall& call) {
  if (!has_empty_part(call)) {
    call.call_operator();
  } else if (call.call().is_in_place()) {
    call.give({call.argument(0)});
  } else {
    call.give({call.tensor(0).clone()});
  }
}

}  // namespace trireme::tensor
