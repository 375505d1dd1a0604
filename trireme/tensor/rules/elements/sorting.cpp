// SPDX-License-Identifier: Apache-2.0
// Rules of sorting, selecting and searching along a dim: the other dims may be sharded. For the
// largest and smallest element the dim itself may be sharded too: ranks exchange (value, index)
// pairs.
#include <trireme/comm/collectives.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/reduced.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <string>

namespace trireme::tensor {
namespace {

// Returns true if the call works along one dim.
bool has_dim(const Call& call) {
  const int position = call.position("dim");
  return position >= 0 && call.argument(position).isInt();
}

std::string without(std::string letters, std::int64_t dim) {
  if (!letters.empty()) letters.erase(static_cast<std::size_t>(dim), 1);
  return letters;
}

// sort and topk return tensors with all dims.
Indices sorting_indices(const Call& call) {
  return {same_letters(call, letters_except(call.input(0).dim(), {dim_of(call)}))};
}

// kthvalue, max and others drop the dim, or keep it with one element.
Indices selecting_indices(const Call& call) {
  if (!has_dim(call)) return {};
  const std::int64_t dim = dim_of(call);
  const std::string letters = letters_except(call.input(0).dim(), {dim});
  Contraction terms = {.inputs = {{letters}}, .outputs = {}};
  terms.outputs.assign(static_cast<std::size_t>(call.num_outputs()),
                       {reduced_by(call).keeps_dims ? letters : without(letters, dim)});
  return {terms};
}

std::vector<at::Tensor> values_and_indices(const Call& call) {
  const at::Tensor values = call.input(0).new_empty(reduced_sizes(call));
  return {values, values.to(at::kLong)};
}

std::vector<at::Tensor> one_index(const Call& call) {
  return {call.input(0).new_empty(reduced_sizes(call)).to(at::kLong)};
}

// The largest or smallest elements of a part, with their indices in the whole tensor.
struct Extremes {
  at::Tensor values;
  at::Tensor indices;
};

constexpr std::int64_t kNoIndex = std::numeric_limits<std::int64_t>::max();

// Reduces candidates along dim 0. Of equal elements the one with the lowest index wins. NaN counts
// as the largest and as the smallest element, as in LibTorch.
Extremes better_along_front(const Extremes& all, bool is_largest) {
  const at::Tensor best =
      std::get<0>(is_largest ? at::max(all.values, 0, true) : at::min(all.values, 0, true));
  at::Tensor is_best = all.values == best;
  if (at::isFloatingType(best.scalar_type())) is_best = is_best.logical_or(all.values.isnan());
  const at::Tensor indices = at::where(is_best, all.indices, kNoIndex);
  return {best.squeeze(0), std::get<0>(at::min(indices, 0))};
}

// Returns the tensors of all ranks, stacked along a new dim 0.
at::Tensor gathered_along_front(const at::Tensor& own, const comm::Group& group) {
  std::vector<std::int64_t> sizes = {group.size()};
  sizes.insert(sizes.end(), own.sizes().begin(), own.sizes().end());
  at::Tensor all = at::empty(sizes, own.options());
  comm::all_gather(all.flatten(), own.contiguous().flatten(), group);
  return all;
}

bool is_largest(const Call& call) { return call.name().find("max") != std::string::npos; }

// Returns the extremes of the part. A part without elements gets values that lose against all
// others.
Extremes own_extremes(const at::Tensor& local, std::int64_t dim, bool is_largest) {
  if (local.size(dim) > 0) {
    auto [values, indices] = is_largest ? at::max(local, dim, true) : at::min(local, dim, true);
    return {values, indices};
  }
  std::vector<std::int64_t> sizes(local.sizes().begin(), local.sizes().end());
  sizes[static_cast<std::size_t>(dim)] = 1;
  const PartialOp op = is_largest ? PartialOp::kMaximum : PartialOp::kMinimum;
  return {neutral_values(sizes, local.options(), op),
          at::full(sizes, kNoIndex, local.options().dtype(at::kLong))};
}

// Returns the extremes along a dim over all ranks that shard it.
Extremes extremes_along(LocalCall& call, std::int64_t dim) {
  const bool largest = is_largest(call.call());
  const Layout& layout = call.input_layout(0);
  const Extent own = own_extent(call.input_sizes(0), layout, dim);
  Extremes found = own_extremes(call.tensor(0), dim, largest);
  if (own.size > 0) found.indices = found.indices + own.offset;
  for (const int axis : layout.axes_of(dim)) {
    const comm::Group& group = layout.mesh().group(axis);
    found = better_along_front(
        {gathered_along_front(found.values, group), gathered_along_front(found.indices, group)},
        largest);
  }
  return found;
}

// Returns the extreme of the whole tensor, with its index in the flattened whole.
Extremes extremes_of_all(LocalCall& call) {
  const bool largest = is_largest(call.call());
  const Layout& layout = call.input_layout(0);
  const at::Tensor local = call.tensor(0);
  Extremes found = own_extremes(local.flatten(), 0, largest);
  found.values = found.values.squeeze(0);
  found.indices = found.indices.squeeze(0);
  if (local.numel() > 0) {
    const auto extents = local_extents(call.input_sizes(0), layout, layout.mesh().coordinate());
    std::int64_t rest = found.indices.item<std::int64_t>();
    std::int64_t place = 0;
    std::int64_t stride = 1;
    for (std::size_t dim = extents.size(); dim-- > 0;) {
      place += (extents[dim].offset + rest % extents[dim].size) * stride;
      rest /= extents[dim].size;
      stride *= call.input_sizes(0)[dim];
    }
    found.indices.fill_(place);
  }
  const auto placements = layout.placements();
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard()) continue;
    const comm::Group& group = layout.mesh().group(static_cast<int>(axis));
    found = better_along_front(
        {gathered_along_front(found.values, group), gathered_along_front(found.indices, group)},
        largest);
  }
  return found;
}

void find_extremes(LocalCall& call) {
  const bool gives_values = call.call().num_outputs() == 2;
  const bool keeps_dims = reduced_by(call.call()).keeps_dims;
  Extremes found;
  if (has_dim(call.call())) {
    const std::int64_t dim = dim_of(call.call());
    if (call.input_layout(0).axes_of(dim).empty()) {
      run_unless_empty(call);
      return;
    }
    found = extremes_along(call, dim);
    if (!keeps_dims) {
      found = {found.values.squeeze(dim), found.indices.squeeze(dim)};
    }
  } else {
    found = extremes_of_all(call);
    if (keeps_dims) found.indices = found.indices.view(call.output_sizes(0));
  }
  if (gives_values) {
    call.give({found.values, found.indices});
  } else {
    call.give({found.indices});
  }
}

// The kernel gathers values and indices along each axis.
void extremes_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  const Layout& layout = decided.inputs[0];
  const DeviceMesh mesh = layout.mesh();
  const std::vector<std::int64_t> dims = reduced_by(call).dims;
  const auto rows = static_cast<double>(rows_of_part(decided, 0, dims));
  const auto bytes_of_value = static_cast<double>(call.input(0).element_size());
  for (const int axis : has_dim(call) ? layout.axes_of(dims[0]) : axes_that_cut(layout, dims)) {
    const double all = rows * static_cast<double>(mesh.size(axis));
    add_exchange(mesh, axis, Collective::kAllGather, all * bytes_of_value, exchanges);
    add_exchange(mesh, axis, Collective::kAllGather, all * sizeof(std::int64_t), exchanges);
  }
}

// max, min, argmax and argmin: the dim may be sharded too, and the kernel makes the result whole.
Rule extremes() {
  const Rule plain = einsum_rule(selecting_indices);
  return {.strategies =
              [plain](const AxisCall& axis, std::vector<Strategy>& all) {
                const std::int64_t num_dims = axis.call.input(0).dim();
                plain.strategies(axis, all);
                for (std::int64_t dim = 0; dim < num_dims; ++dim) {
                  if (has_dim(axis.call) && dim != dim_of(axis.call)) continue;
                  all.push_back(alike(axis.call, Shard{static_cast<int>(dim)}, Replicate{}));
                }
                for (Strategy& strategy : all) strategy.kernel = find_extremes;
              },
          .exchanges = extremes_exchanges};
}

// aminmax: if the dim is sharded, both results are Partial.
Rule both_extremes() {
  const Rule plain = einsum_rule(selecting_indices);
  return {
      .strategies =
          [plain](const AxisCall& axis, std::vector<Strategy>& all) {
            plain.strategies(axis, all);
            for (std::int64_t dim = 0; dim < axis.call.input(0).dim(); ++dim) {
              if (has_dim(axis.call) && dim != dim_of(axis.call)) continue;
              Strategy& strategy = all.emplace_back();
              strategy.inputs = {Shard{static_cast<int>(dim)}};
              strategy.outputs = {Partial{PartialOp::kMinimum}, Partial{PartialOp::kMaximum}};
            }
            for (Strategy& strategy : all)
              strategy.kernel = [](LocalCall& call) {
                if (!has_empty_part(call)) {
                  call.call_operator();
                  return;
                }
                const auto options = call.tensor(0).options();
                call.give(
                    {neutral_values(local_output_sizes(call, 0), options, PartialOp::kMinimum),
                     neutral_values(local_output_sizes(call, 1), options, PartialOp::kMaximum)});
              };
          },
      .shapes =
          [](const Call& call) {
            const at::Tensor value = call.input(0).new_empty(reduced_sizes(call));
            return std::vector<at::Tensor>{value, value};
          }};
}

// The inputs are grad and the indices of the selected elements; all other gradients are zero.
Indices selecting_backward_indices(const Call& call) {
  const std::vector<std::int64_t> sizes = call.integers(call.position("sizes"));
  const auto num_dims = static_cast<std::int64_t>(sizes.size());
  if (num_dims == 0) return {};
  const std::int64_t dim = wrapped_dim(call.integer(1), num_dims);
  const std::string letters = letters_except(num_dims, {dim});
  const bool has_all = call.input(0).dim() == num_dims;
  const std::string output_letters = has_all ? letters : without(letters, dim);
  return {{.inputs = {{output_letters}, {output_letters}}, .outputs = {{letters}}, .linear = {0}}};
}

// A sequence of one dim is used for all values; otherwise it has the leading dims of the values.
Indices searchsorted_indices(const Call& call) {
  const int sequence = call.input_of(call.position("sorted_sequence"));
  const int values = call.input_of(call.position("self"));
  if (values < 0) return {};
  const std::int64_t num_dims = call.input(values).dim();
  const bool is_shared = call.input(sequence).dim() == 1;
  Indices indices;
  for (int i = 0; i < call.num_inputs(); ++i) {
    const std::int64_t its_dims = call.input(i).dim();
    const std::string letters = i == values ? letters_for(num_dims)
                                : is_shared ? "."
                                            : letters_except(its_dims, {-1});
    indices.terms.inputs.push_back({letters});
  }
  indices.terms.outputs = {{letters_for(num_dims)}};
  return indices;
}

Indices bucketize_indices(const Call& call) {
  if (call.num_inputs() < 2) return {};
  const std::string letters = letters_for(call.input(0).dim());
  return {{.inputs = {{letters}, {"."}}, .outputs = {{letters}}}};
}

std::vector<at::Tensor> search_shape(const Call& call) {
  const int values = call.input_of(call.position("self"));
  const at::ScalarType dtype = call.boolean(call.position("out_int32")) ? at::kInt : at::kLong;
  const at::Tensor shape = values < 0 ? call.input(0).new_empty({}) : call.input(values);
  return {shape.to(dtype)};
}

}  // namespace

void add_sorting_rules(NamedRules& rules) {
  FamilyRules family(rules, "sorting");
  family.add({"sort", "argsort", "topk"}, einsum_rule(sorting_indices));
  family.add({"kthvalue", "mode", "median.dim", "median.dim_values", "nanmedian.dim",
              "nanmedian.dim_values"},
             with_shapes(einsum_rule(selecting_indices), values_and_indices));
  family.add({"max.dim", "max.dim_max", "min.dim", "min.dim_min"},
             with_shapes(extremes(), values_and_indices));
  family.add({"argmax", "argmin"}, with_shapes(extremes(), one_index));
  family.add("aminmax", both_extremes());
  family.add({"median", "nanmedian"}, with_shapes(whole_rule(), [](const Call& call) {
               return std::vector<at::Tensor>{call.input(0).new_empty({})};
             }));
  Rule backward = with_local_sizes(einsum_rule(selecting_backward_indices), "sizes");
  family.add("value_selecting_reduction_backward",
             with_shapes(std::move(backward), [](const Call& call) {
               return std::vector<at::Tensor>{
                   call.input(0).new_empty(call.integers(call.position("sizes")))};
             }));
  family.add("searchsorted", with_shapes(einsum_rule(searchsorted_indices), search_shape));
  family.add("bucketize", with_shapes(einsum_rule(bucketize_indices), search_shape));
  family.add({"_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"},
             local_shape_rule());
}

}  // namespace trireme::tensor
