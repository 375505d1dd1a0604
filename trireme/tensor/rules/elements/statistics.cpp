// SPDX-License-Identifier: Apache-2.0
// Rules of variances, counts, comparisons of whole tensors and distances between rows. A reduction
// along a sharded dim is exact: first the sums, then the squared differences from the mean.
#include <trireme/comm/collectives.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/reduced.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <string>

namespace trireme::tensor {
namespace {

// Returns the letters of the result: those of `letters` whose dims are not reduced.
std::string kept_letters(const Call& call, const std::string& letters) {
  const Reduced reduced = reduced_by(call);
  std::string kept;
  for (std::size_t dim = 0; dim < letters.size(); ++dim) {
    const bool is_reduced = reduced.has(static_cast<std::int64_t>(dim));
    if (!is_reduced) kept.push_back(letters[dim]);
    if (is_reduced && reduced.keeps_dims) kept.push_back('.');
  }
  return kept;
}

Indices kept_dims_indices(const Call& call) {
  const std::string letters = letters_except(call.input(0).dim(), reduced_by(call).dims);
  const std::string kept = kept_letters(call, letters);
  Contraction terms = {.inputs = {{letters}}, .outputs = {}};
  terms.outputs.assign(static_cast<std::size_t>(call.num_outputs()), {kept});
  return {terms};
}

// var, std, var_mean, std_mean.
void variance(LocalCall& call) {
  const std::vector<std::int64_t> dims = reduced_by(call.call()).dims;
  const Axes axes = axes_that_cut(call.input_layout(0), dims);
  if (axes.empty()) {
    run_unless_empty(call);
    return;
  }
  const at::Tensor local = call.tensor(0);
  const at::Tensor wide = local.to(wide_type(local.scalar_type()));
  const DeviceMesh mesh = call.input_layout(0).mesh();
  const std::string& name = call.call().name();
  const auto count = static_cast<double>(count_of(call.input_sizes(0), dims));
  const auto sums = [&](const at::Tensor& values) {
    return reduced_across(at::sum(values, dims, /*keepdim=*/true), mesh, axes, comm::ReduceOp::kSum,
                          name);
  };
  // Two passes: the difference of large sums would lose digits.
  const at::Tensor mean = sums(wide).div_(count);
  const at::Tensor squares = sums((wide - mean).square());
  const c10::IValue& given = call.argument(call.call().position("correction"));
  const double correction = given.isNone() ? 1.0 : given.toScalar().toDouble();
  at::Tensor result = squares / std::max(count - correction, 0.0);
  if (name.find("std") != std::string::npos) result.sqrt_();
  const auto finished = [&](const at::Tensor& values) {
    return values.view(local_output_sizes(call, 0)).to(local.scalar_type());
  };
  if (call.call().num_outputs() == 2) {
    call.give({finished(result), finished(mean)});
  } else {
    call.give({finished(result)});
  }
}

// The kernel sums rows twice: for the mean, then for the squared differences.
void variance_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  add_row_reductions(decided, 0, reduced_by(decided.call).dims, 2,
                     wide_type(decided.call.input(0).scalar_type()), exchanges);
}

Rule variance_rule() {
  const Rule plain = einsum_rule(kept_dims_indices);
  return {.strategies =
              [plain](const AxisCall& axis, std::vector<Strategy>& all) {
                plain.strategies(axis, all);
                const at::Tensor& input = axis.call.input(0);
                const bool is_cut = input.dim() > 0 && !at::isComplexType(input.scalar_type());
                for (const std::int64_t dim : reduced_by(axis.call).dims) {
                  if (is_cut)
                    all.push_back(alike(axis.call, Shard{static_cast<int>(dim)}, Replicate{}));
                }
                for (Strategy& strategy : all) strategy.kernel = variance;
              },
          .shapes =
              [](const Call& call) {
                const at::ScalarType type = c10::toRealValueType(call.input(0).scalar_type());
                const at::Tensor variance =
                    call.input(0).new_empty(reduced_sizes(call), at::TensorOptions().dtype(type));
                const bool has_mean = call.schema().returns().size() == 2;
                if (!has_mean) return std::vector<at::Tensor>{variance};
                return std::vector<at::Tensor>{variance,
                                               call.input(0).new_empty(reduced_sizes(call))};
              },
          .exchanges = variance_exchanges};
}

// A reduced dim keeps its letter in the input and has none in the result, so that counts add up.
Indices counting_indices(const Call& call) {
  const std::string letters = letters_for(call.input(0).dim());
  return {{.inputs = {{letters}}, .outputs = {{kept_letters(call, letters)}}}};
}

// equal and allclose: true if they are true for the parts of all ranks.
void all_agree(LocalCall& call) {
  const at::Tensor first = call.tensor(0);
  const at::Tensor second = call.tensor(1);
  const bool is_equal = call.call().name() == "aten::equal"
                            ? at::equal(first, second)
                            : at::allclose(first, second, call.argument(2).toDouble(),
                                           call.argument(3).toDouble(), call.argument(4).toBool());
  const Layout& layout = call.input_layout(0);
  const at::Tensor agree = at::full({1}, is_equal ? 1 : 0, first.options().dtype(at::kLong));
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (layout[axis].is_replicate()) continue;
    comm::all_reduce(agree, layout.mesh().group(axis), comm::ReduceOp::kMinimum,
                     call.call().name());
  }
  call.give({agree.item<std::int64_t>() == 1});
}

void comparing_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Layout& layout = decided.inputs[0];
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (!layout[axis].is_replicate()) add_reductions(decided, axis, 1, at::kLong, exchanges);
  }
}

Rule comparing_rule() {
  return {.strategies =
              [](const AxisCall& axis, std::vector<Strategy>& all) {
                const Call& call = axis.call;
                if (call.num_inputs() < 2 || call.input(0).sizes() != call.input(1).sizes()) return;
                for (int i = 0; i < 2; ++i) {
                  const Placement& current = axis.layouts[static_cast<std::size_t>(i)][axis.axis];
                  const bool is_cut = current.is_shard() || current.is_flat_shard();
                  if (is_cut) all.push_back(alike(call, current, Replicate{}));
                }
                for (Strategy& strategy : all) strategy.kernel = all_agree;
              },
          .shape_from_local = true,
          .exchanges = comparing_exchanges};
}

// Returns letters for leading dims, counted from the end, and then for rows and columns.
std::string matrix_letters(const at::Tensor& tensor, char rows, char columns) {
  std::string letters;
  for (std::int64_t dim = tensor.dim() - 3; dim >= 0; --dim) {
    letters.push_back(static_cast<char>('A' + dim));
  }
  return letters + rows + columns;
}

Indices distance_indices(const Call& call) {
  return {{.inputs = {{matrix_letters(call.input(0), 'p', '.')},
                      {matrix_letters(call.input(1), 'r', '.')}},
           .outputs = {{matrix_letters(call.output(0), 'p', 'r')}}}};
}

// The inputs are grad, both sets of rows, and the distances.
Indices distance_backward_indices(const Call& call) {
  const auto rows = [](const at::Tensor& tensor, char letter) {
    return Term{matrix_letters(tensor, letter, '.')};
  };
  return {{.inputs = {{matrix_letters(call.input(0), 'p', 'r')},
                      rows(call.input(1), 'p'),
                      rows(call.input(2), 'r'),
                      {matrix_letters(call.input(3), 'p', 'r')}},
           .outputs = {rows(call.output(0), 'p')},
           .linear = {0}}};
}

std::vector<std::int64_t> leading_sizes(const at::Tensor& first, const at::Tensor& second) {
  return at::infer_size(first.sizes().slice(0, static_cast<std::size_t>(first.dim() - 2)),
                        second.sizes().slice(0, static_cast<std::size_t>(second.dim() - 2)));
}

std::vector<at::Tensor> distance_shape(const Call& call) {
  std::vector<std::int64_t> sizes = leading_sizes(call.input(0), call.input(1));
  sizes.push_back(call.input(0).size(-2));
  sizes.push_back(call.input(1).size(-2));
  return {call.input(0).new_empty(sizes)};
}

std::vector<at::Tensor> distance_backward_shape(const Call& call) {
  std::vector<std::int64_t> sizes = leading_sizes(call.input(1), call.input(2));
  sizes.push_back(call.input(1).size(-2));
  sizes.push_back(call.input(1).size(-1));
  return {call.input(1).new_empty(sizes)};
}

std::vector<at::Tensor> pair_distances_shape(const Call& call) {
  const std::int64_t rows = call.input(0).size(0);
  return {call.input(0).new_empty({rows * (rows - 1) / 2})};
}

// renorm takes norms over all dims but one, which may be sharded.
Indices renorm_indices(const Call& call) {
  std::string letters(static_cast<std::size_t>(call.input(0).dim()), '.');
  letters[static_cast<std::size_t>(dim_of(call))] = 'A';
  return {same_letters(call, letters)};
}

}  // namespace

void add_statistics_rules(NamedRules& rules) {
  FamilyRules family(rules, "statistics");
  family.add({"var", "std", "var_mean", "std_mean"}, variance_rule());
  family.add(
      "count_nonzero", with_shapes(einsum_rule(counting_indices), [](const Call& call) {
        return std::vector<at::Tensor>{call.input(0).new_empty(reduced_sizes(call)).to(at::kLong)};
      }));
  family.add({"equal", "allclose"}, comparing_rule());
  family.add({"_cdist_forward", "_euclidean_dist"},
             with_shapes(einsum_rule(distance_indices), distance_shape));
  family.add("_cdist_backward",
             with_shapes(einsum_rule(distance_backward_indices), distance_backward_shape));
  family.add("_pdist_forward", with_shapes(whole_rule(), pair_distances_shape));
  family.add("_pdist_backward", with_shapes(whole_rule(), like_second));
  family.add("renorm", einsum_rule(renorm_indices));
  family.add(
      {"histc", "bincount", "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts",
       "_histogramdd_from_bin_tensors", "_local_scalar_dense", "is_set_to", "_assert_async"},
      local_shape_rule());
}

}  // namespace trireme::tensor
