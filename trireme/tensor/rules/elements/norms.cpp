// SPDX-License-Identifier: Apache-2.0
// Rules of norms. If a reduced dim is sharded, ranks add the powers of their parts, or take the
// largest, in double precision; the root is rounded once.
#include <trireme/comm/collectives.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/reduced.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace trireme::tensor {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns p, or ord; 2 if it was not given.
double order_of(LocalCall& call) {
  const Call& global = call.call();
  const int position = std::max(global.position("p"), global.position("ord"));
  const c10::IValue& given = call.argument(position);
  return given.isNone() ? 2.0 : given.toScalar().toDouble();
}

// Returns the norm of a part in double precision, with reduced dims kept at size one. A part
// without elements gets the neutral value.
at::Tensor norm_of_part(const at::Tensor& part, double order, c10::IntArrayRef dims) {
  const bool is_empty =
      std::ranges::any_of(dims, [&](std::int64_t dim) { return part.size(dim) == 0; });
  if (is_empty) {
    std::vector<std::int64_t> sizes(part.sizes().begin(), part.sizes().end());
    for (const std::int64_t dim : dims) sizes[static_cast<std::size_t>(dim)] = 1;
    return at::full(sizes, order < 0 ? kInfinity : 0.0, part.options().dtype(at::kDouble));
  }
  const bool is_complex = at::isComplexType(part.scalar_type());
  return at::linalg_vector_norm(part, order, dims, /*keepdim=*/true,
                                is_complex ? at::kComplexDouble : at::kDouble);
}

// Returns how the powers of parts are combined.
comm::ReduceOp combination(double order) {
  if (order == kInfinity) return comm::ReduceOp::kMaximum;
  if (order == -kInfinity) return comm::ReduceOp::kMinimum;
  return comm::ReduceOp::kSum;
}

// Norms of a finite order other than 0 are combined as sums of powers. The others are combined as
// they are.
bool has_powers(double order) { return std::isfinite(order) && order != 0; }
at::Tensor raised(const at::Tensor& norms, double order) {
  return has_powers(order) ? norms.pow(order) : norms;
}
at::Tensor rooted(const at::Tensor& powers, double order) {
  if (!has_powers(order)) return powers;
  return order == 2 ? powers.sqrt() : powers.pow(1 / order);
}

at::Tensor combined(const at::Tensor& norms, double order, const DeviceMesh& mesh,
                    c10::ArrayRef<int> axes, std::string_view label) {
  return rooted(reduced_across(raised(norms, order), mesh, axes, combination(order), label), order);
}

// Returns the axes that shard the dims, or have a FlatShard.
Axes cutting_axes(const Layout& layout, c10::IntArrayRef dims) {
  Axes axes = axes_that_cut(layout, dims);
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (layout[axis].is_flat_shard()) axes.push_back(axis);
  }
  return axes;
}

void norm(LocalCall& call) {
  const std::vector<std::int64_t> dims = reduced_by(call.call()).dims;
  const Layout& layout = call.input_layout(0);
  const Axes axes = cutting_axes(layout, dims);
  if (axes.empty()) {
    run_unless_empty(call);
    return;
  }
  const at::Tensor part = call.tensor(0);
  const double order = order_of(call);
  const at::Tensor own = norm_of_part(part, order, layout.has_flat_shard() ? dims_of({}, 1) : dims);
  const at::Tensor result = combined(own, order, layout.mesh(), axes, call.call().name());
  call.give({result.view(local_output_sizes(call, 0)).to(call.call().output(0).scalar_type())});
}

std::vector<at::Tensor> norm_shape(const Call& call) {
  const at::Tensor& input = call.input(0);
  const int dtype = call.position("dtype");
  const bool is_given = dtype >= 0 && !call.is_none(dtype);
  const at::ScalarType type = is_given ? call.argument(dtype).toScalarType() : input.scalar_type();
  return {
      input.new_empty(reduced_sizes(call), at::TensorOptions().dtype(c10::toRealValueType(type)))};
}

void norm_strategies(const AxisCall& axis, std::vector<Strategy>& all) {
  const std::int64_t num_dims = axis.call.input(0).dim();
  const Reduced reduced = reduced_by(axis.call);
  std::int64_t num_reduced = 0;
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    const bool is_reduced = reduced.has(dim);
    if (is_reduced) ++num_reduced;
    all.push_back(alike(axis.call, Shard{static_cast<int>(dim)},
                        is_reduced ? Placement(Replicate{}) : Shard{reduced.place(dim)}));
  }
  const Placement& current = axis.layouts[0][axis.axis];
  if (current.is_flat_shard() && num_reduced == num_dims) {
    all.push_back(alike(axis.call, current, Replicate{}));
  }
  for (Strategy& strategy : all) strategy.kernel = norm;
}

// The kernel sums one power per row in double precision; a flat range is a single row.
void norm_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Layout& layout = decided.inputs[0];
  const std::vector<std::int64_t> dims = reduced_by(decided.call).dims;
  const std::int64_t rows = layout.has_flat_shard() ? 1 : rows_of_part(decided, 0, dims);
  add_reductions(decided, cutting_axes(layout, dims), rows, at::kDouble, exchanges);
}

Rule norm_rule() {
  return {.strategies = norm_strategies, .shapes = norm_shape, .exchanges = norm_exchanges};
}

// The norm of each tensor in a list, with one collective per axis for all tensors.
void foreach_norm(LocalCall& call) {
  const double order = order_of(call);
  const auto parts = call.argument(0).toTensorVector();
  const DeviceMesh mesh = call.input_layout(0).mesh();
  std::vector<at::Tensor> powers;
  std::vector<Axes> axes_of;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Layout& layout = call.input_layout(static_cast<int>(i));
    const std::vector<std::int64_t> dims =
        dims_of({}, call.call().input(static_cast<int>(i)).dim());
    axes_of.push_back(cutting_axes(layout, dims));
    if (axes_of.back().empty()) {
      const c10::IValue& dtype = call.argument(2);
      const auto type = dtype.isNone() ? std::optional<at::ScalarType>() : dtype.toScalarType();
      powers.push_back(
          at::linalg_vector_norm(parts[i], order, at::OptionalIntArrayRef(), false, type));
    } else {
      const auto own = norm_of_part(parts[i], order, dims_of({}, parts[i].dim()));
      powers.push_back(raised(own, order).view(c10::IntArrayRef()));
    }
  }
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<std::size_t> cut;
    std::vector<at::Tensor> values;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (std::ranges::find(axes_of[i], axis) == axes_of[i].end()) continue;
      cut.push_back(i);
      values.push_back(powers[i]);
    }
    if (cut.empty()) continue;
    const at::Tensor all = at::stack(values);
    comm::all_reduce(all, mesh.group(axis), combination(order), call.call().name());
    for (std::size_t i = 0; i < cut.size(); ++i) powers[cut[i]] = all[static_cast<std::int64_t>(i)];
  }
  c10::List<at::Tensor> norms;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor norm = axes_of[i].empty() ? powers[i] : rooted(powers[i], order);
    // A clone, because all norms share the memory of the stack.
    norms.push_back(norm.to(call.call().output(static_cast<int>(i)).scalar_type()).clone());
  }
  call.give({norms});
}

void foreach_norm_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  for (int axis = 0; axis < decided.inputs.front().mesh().num_axes(); ++axis) {
    std::int64_t num_cut = 0;
    for (const Layout& layout : decided.inputs) num_cut += layout[axis].is_replicate() ? 0 : 1;
    if (num_cut > 0) add_reductions(decided, axis, num_cut, at::kDouble, exchanges);
  }
}

Rule foreach_norm_rule() {
  return {.strategies =
              [](const AxisCall& axis, std::vector<Strategy>& all) {
                for (std::int64_t dim = 0; dim < axis.call.input(0).dim(); ++dim) {
                  all.push_back(alike(axis.call, Shard{static_cast<int>(dim)}, Replicate{}));
                }
                const Placement& current = axis.layouts[0][axis.axis];
                if (current.is_flat_shard()) all.push_back(alike(axis.call, current, Replicate{}));
                for (Strategy& strategy : all) strategy.kernel = foreach_norm;
              },
          .shapes =
              [](const Call& call) {
                std::vector<at::Tensor> norms;
                const c10::IValue& dtype = call.argument(2);
                for (const at::Tensor& input : call.inputs()) {
                  const auto type = dtype.isNone() ? input.scalar_type() : dtype.toScalarType();
                  norms.push_back(
                      input.new_empty({}, at::TensorOptions().dtype(c10::toRealValueType(type))));
                }
                return norms;
              },
          .elementwise_lists = true,
          .exchanges = foreach_norm_exchanges};
}

// dist is the norm of a difference.
void distance(LocalCall& call) {
  const std::vector<std::int64_t> dims =
      dims_of({}, std::max(static_cast<std::int64_t>(call.input_sizes(0).size()),
                           static_cast<std::int64_t>(call.input_sizes(1).size())));
  const at::Tensor difference = call.tensor(0) - call.tensor(1);
  const double order = order_of(call);
  const DeviceMesh mesh = call.input_layout(0).mesh();
  Axes axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const bool is_cut =
        !call.input_layout(0)[axis].is_replicate() || !call.input_layout(1)[axis].is_replicate();
    if (is_cut) axes.push_back(axis);
  }
  const at::Tensor result =
      combined(norm_of_part(difference, order, dims), order, mesh, axes, call.call().name());
  call.give({result.view(c10::IntArrayRef()).to(call.call().output(0).scalar_type())});
}

void distance_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  for (int axis = 0; axis < decided.inputs.front().mesh().num_axes(); ++axis) {
    const bool is_cut =
        !decided.inputs[0][axis].is_replicate() || !decided.inputs[1][axis].is_replicate();
    if (is_cut) add_reductions(decided, axis, 1, at::kDouble, exchanges);
  }
}

Rule distance_rule() {
  return {.strategies =
              [](const AxisCall& axis, std::vector<Strategy>& all) {
                const auto sizes =
                    at::infer_size(axis.call.input(0).sizes(), axis.call.input(1).sizes());
                for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
                  Strategy& strategy = all.emplace_back();
                  for (const at::Tensor& input : axis.call.inputs()) {
                    strategy.inputs.push_back(
                        placed_along(input, sizes, static_cast<std::int64_t>(dim)));
                  }
                  strategy.outputs.push_back(Replicate{});
                  strategy.kernel = distance;
                }
              },
          .shapes =
              [](const Call& call) {
                const at::ScalarType type = c10::toRealValueType(call.input(0).scalar_type());
                return std::vector<at::Tensor>{
                    call.input(0).new_empty({}, at::TensorOptions().dtype(type))};
              },
          .exchanges = distance_exchanges};
}

// weight_norm divides each slice of a weight along one dim by its norm; this dim may be sharded.
// All tensors of the call have the same number of dims.
Indices weight_norm_indices(const Call& call) {
  std::string letters(static_cast<std::size_t>(call.input(0).dim()), '.');
  letters[static_cast<std::size_t>(dim_of(call))] = 'A';
  return {same_letters(call, letters)};
}

Indices weight_norm_backward_indices(const Call& call) {
  Indices indices = weight_norm_indices(call);
  indices.terms.linear = {0};
  return indices;
}

std::vector<at::Tensor> weight_norm_shapes(const Call& call) {
  const at::Tensor& scale = call.input(1);
  return {call.input(0), scale.to(wide_type(scale.scalar_type()))};
}

}  // namespace

void add_norm_rules(NamedRules& rules) {
  FamilyRules family(rules, "norms");
  family.add({"norm", "linalg_vector_norm"}, norm_rule());
  family.add("_foreach_norm", foreach_norm_rule());
  family.add("dist", distance_rule());
  family.add("_weight_norm_interface",
             with_shapes(einsum_rule(weight_norm_indices), weight_norm_shapes));
  family.add("_weight_norm_interface_backward",
             with_shapes(einsum_rule(weight_norm_backward_indices),
                         [](const Call& call) -> std::vector<at::Tensor> {
                           return {call.input(1), call.input(2)};
                         }));
}

}  // namespace trireme::tensor
