// SPDX-License-Identifier: Apache-2.0
// Rules of views. A dim may stay sharded if every rank's part of the view is a view of its part; no
// communication is needed then.
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/shapes/recut.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/reshape.h>
#include <ATen/ops/squeeze.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tensor {
namespace {

// Neighbouring dims of the tensor and neighbouring dims of the view that hold the same elements:
// the products of their sizes are equal.
struct ViewGroup {
  // Dims of the tensor, and dims of the view.
  std::vector<int> from;
  std::vector<int> to;
};

// Moves over one dim and returns the product including its size.
std::int64_t take(c10::ArrayRef<std::int64_t> sizes, std::size_t& next, std::vector<int>& dims,
                  std::int64_t product) {
  const std::int64_t size = sizes[next];
  if (size != 1) dims.push_back(static_cast<int>(next));
  ++next;
  return product * size;
}

// Skips dims of size one.
void pass_ones(c10::ArrayRef<std::int64_t> sizes, std::size_t& next) {
  while (next < sizes.size() && sizes[next] == 1) ++next;
}

// A dim of size one can only be matched if the view does not change the sizes.
int cut_of_one(c10::ArrayRef<std::int64_t> from, c10::ArrayRef<std::int64_t> to, int dim) {
  return from == to ? dim : -1;
}

// Returns the smallest groups in order. Dims of size one belong to no group. Empty for a tensor
// without elements, whose sizes do not tell which dims belong together.
std::vector<ViewGroup> view_groups(c10::ArrayRef<std::int64_t> from,
                                   c10::ArrayRef<std::int64_t> to) {
  std::vector<ViewGroup> groups;
  const bool is_empty = std::ranges::find(from, 0) != from.end();
  if (is_empty) return groups;
  std::size_t i = 0;
  std::size_t j = 0;
  while (true) {
    pass_ones(from, i);
    pass_ones(to, j);
    if (i == from.size() || j == to.size()) break;
    ViewGroup group;
    std::int64_t left = take(from, i, group.from, 1);
    std::int64_t right = take(to, j, group.to, 1);
    while (left != right) {
      if (left < right) {
        left = take(from, i, group.from, left);
      } else {
        right = take(to, j, group.to, right);
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// Returns the dim of the view that is sharded if `dim` is sharded into `parts`. Every rank's part
// of the view is then a view of its part. Returns -1 if there is none. It is the outermost dim of
// a group if the sizes on both sides divide by `parts`, or if both dims have the same size.
int cut_of_view(c10::ArrayRef<std::int64_t> from, c10::ArrayRef<std::int64_t> to, int dim,
                std::int64_t parts) {
  if (from == to) return dim;
  if (from[static_cast<std::size_t>(dim)] == 1) return cut_of_one(from, to, dim);
  for (const ViewGroup& group : view_groups(from, to)) {
    if (group.from.front() != dim) continue;
    const int outermost = group.to.front();
    const std::int64_t size = from[static_cast<std::size_t>(dim)];
    const std::int64_t its_size = to[static_cast<std::size_t>(outermost)];
    const bool is_same = size == its_size;
    const bool divides = size % parts == 0 && its_size % parts == 0;
    return is_same || divides ? outermost : -1;
  }
  return -1;
}

// The position of each dim of the input in the output; -1 if it cannot stay sharded.
using DimMap = std::vector<int>;
using MapDims = DimMap (*)(const AxisCall&);

// The Partial inputs that stay Partial in a view.
enum class Partials {
  kAll,   // the view only rearranges elements
  kSums,  // the view is linear but does not keep the order of elements
  kNone,  // the view interprets the bits of elements in another way
};

void add_partials(const AxisCall& axis, Partials partials, std::vector<Strategy>& strategies) {
  const Placement& current = axis.layouts[0][axis.axis];
  if (!current.is_partial() || partials == Partials::kNone) return;
  const bool is_sum = current.op() == PartialOp::kSum || current.op() == PartialOp::kAverage;
  if (is_sum || partials == Partials::kAll) {
    strategies.push_back(alike(axis.call, current, current));
  }
}

void add_mapped(const AxisCall& axis, const DimMap& map, Partials partials,
                std::vector<Strategy>& strategies) {
  for (std::size_t dim = 0; dim < map.size(); ++dim) {
    if (map[dim] < 0) continue;
    strategies.push_back(alike(axis.call, Shard{static_cast<int>(dim)}, Shard{map[dim]}));
  }
  add_partials(axis, partials, strategies);
}

DimMap identity(const Call& call) {
  DimMap map;
  for (int dim = 0; dim < static_cast<int>(call.input(0).dim()); ++dim) map.push_back(dim);
  return map;
}

Rule mapped(MapDims map, Partials partials = Partials::kAll) {
  return {.strategies = [map, partials](const AxisCall& axis, std::vector<Strategy>& strategies) {
    add_mapped(axis, map(axis), partials, strategies);
  }};
}

// Returns a rule that replaces the argument at `position` by the local sizes of the output.
Rule sized(MapDims map, int position) {
  Rule rule = mapped(map);
  rule.local_arguments = [position](const Call& call, c10::ArrayRef<Layout> outputs,
                                    c10::IntArrayRef coordinate,
                                    std::vector<std::pair<int, c10::IValue>>& replaced) {
    const auto sizes = local_sizes(call.output(0).sizes(), outputs[0], coordinate);
    replaced.emplace_back(position, as_list(sizes));
  };
  return rule;
}

DimMap map_view(const AxisCall& axis) {
  const c10::IntArrayRef from = axis.call.input(0).sizes();
  const c10::IntArrayRef to = axis.call.output(0).sizes();
  DimMap map;
  for (int dim = 0; dim < static_cast<int>(from.size()); ++dim) {
    map.push_back(cut_of_view(from, to, dim, axis.parts(0, dim)));
  }
  return map;
}

// _reshape_alias is given strides of the whole tensor, which a local part may not have.
void reshape_alias(LocalCall& call) {
  const std::vector<std::int64_t> sizes = call.argument(1).toIntVector();
  call.give({at::reshape(call.tensor(0), sizes)});
}

int dim_argument(const Call& call, int position = 1) {
  return static_cast<int>(wrapped_dim(call.integer(position), call.input(0).dim()));
}

DimMap map_transpose(const AxisCall& axis) {
  DimMap map = identity(axis.call);
  if (map.size() > 1) {
    std::swap(map[static_cast<std::size_t>(dim_argument(axis.call, 1))],
              map[static_cast<std::size_t>(dim_argument(axis.call, 2))]);
  }
  return map;
}

DimMap map_t(const AxisCall& axis) {
  DimMap map = identity(axis.call);
  std::ranges::reverse(map);
  return map;
}

DimMap map_permute(const AxisCall& axis) {
  const std::vector<std::int64_t> order = dims_of(axis.call.argument(1), axis.call.input(0).dim());
  DimMap map(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    map[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  }
  return map;
}

// Maps all dims to themselves, except the dim of the argument `dim`.
DimMap map_except(const AxisCall& axis) {
  DimMap map = identity(axis.call);
  if (!map.empty())
    map[static_cast<std::size_t>(dim_argument(axis.call, axis.call.position("dim")))] = -1;
  return map;
}

// Maps all dims except the one that is removed.
DimMap map_select(const AxisCall& axis) {
  const int dim = dim_argument(axis.call, axis.call.position("dim"));
  DimMap map = identity(axis.call);
  for (int& place : map) {
    if (place == dim) {
      place = -1;
    } else if (place > dim) {
      --place;
    }
  }
  return map;
}

DimMap map_slice(const AxisCall& axis) {
  const bool takes_all = axis.call.input(0).sizes() == axis.call.output(0).sizes();
  return takes_all ? identity(axis.call) : map_except(axis);
}

DimMap map_unsqueeze(const AxisCall& axis) {
  const auto dim =
      static_cast<int>(wrapped_dim(axis.call.integer(1), axis.call.input(0).dim() + 1));
  DimMap map = identity(axis.call);
  for (int& place : map) {
    if (place >= dim) ++place;
  }
  return map;
}

std::vector<std::int64_t> squeezed_dims(const Call& call) {
  const int position = call.position("dim");
  const at::Tensor& input = call.input(0);
  std::vector<std::int64_t> dims =
      dims_of(position < 0 ? c10::IValue() : call.argument(position), input.dim());
  std::erase_if(dims, [&](std::int64_t dim) { return input.dim() == 0 || input.size(dim) != 1; });
  return dims;
}

DimMap map_squeeze(const AxisCall& axis) {
  const std::vector<std::int64_t> dims = squeezed_dims(axis.call);
  DimMap map = identity(axis.call);
  for (int& place : map) {
    const bool goes = std::ranges::find(dims, place) != dims.end();
    const auto before = std::ranges::count_if(dims, [&](std::int64_t dim) { return dim < place; });
    place = goes ? -1 : place - static_cast<int>(before);
  }
  return map;
}

// Squeezes the dims that have size one in the whole tensor; others may have size one in a part.
void squeeze(LocalCall& call) {
  const at::Tensor local = call.tensor(0);
  const std::vector<std::int64_t> dims = squeezed_dims(call.call());
  if (call.call().is_in_place()) {
    call.give({local.squeeze_(dims)});
  } else {
    call.give({at::squeeze(local, dims)});
  }
}

DimMap map_expand(const AxisCall& axis) {
  const at::Tensor& input = axis.call.input(0);
  const at::Tensor& output = axis.call.output(0);
  const auto added = static_cast<int>(output.dim() - input.dim());
  DimMap map;
  for (int dim = 0; dim < static_cast<int>(input.dim()); ++dim) {
    const bool is_kept = input.size(dim) == output.size(dim + added);
    map.push_back(is_kept ? dim + added : -1);
  }
  return map;
}

DimMap map_diagonal(const AxisCall& axis) {
  const int first = dim_argument(axis.call, axis.call.position("dim1"));
  const int second = dim_argument(axis.call, axis.call.position("dim2"));
  DimMap map = identity(axis.call);
  for (int& place : map) {
    const int before = (first < place ? 1 : 0) + (second < place ? 1 : 0);
    place = place == first || place == second ? -1 : place - before;
  }
  return map;
}

DimMap map_unfold(const AxisCall& axis) {
  DimMap map = identity(axis.call);
  if (!map.empty()) {
    map[static_cast<std::size_t>(dim_argument(axis.call, axis.call.position("dimension")))] = -1;
  }
  return map;
}

DimMap map_identity(const AxisCall& axis) { return identity(axis.call); }

DimMap map_but_last(const AxisCall& axis) {
  DimMap map = identity(axis.call);
  if (!map.empty()) map.back() = -1;
  return map;
}

// As another dtype, elements of another size regroup the elements of the last dim.
DimMap map_retyped(const AxisCall& axis) {
  const bool has_same_size =
      axis.call.input(0).element_size() == axis.call.output(0).element_size();
  return has_same_size ? identity(axis.call) : map_but_last(axis);
}

// The gradient of a slice is zero outside it, and is given the sizes of the input.
DimMap map_slice_backward(const AxisCall& axis) {
  DimMap map = identity(axis.call);
  const int dim = static_cast<int>(wrapped_dim(axis.call.integer(2), axis.call.output(0).dim()));
  map[static_cast<std::size_t>(dim)] = -1;
  return map;
}

DimMap map_select_backward(const AxisCall& axis) {
  const int dim = static_cast<int>(wrapped_dim(axis.call.integer(2), axis.call.output(0).dim()));
  DimMap map = identity(axis.call);
  for (int& place : map) {
    if (place >= dim) ++place;
  }
  return map;
}

Rule with_kernel(Rule rule, LocalKernel kernel) {
  auto strategies = rule.strategies;
  rule.strategies = [strategies, kernel](const AxisCall& axis, std::vector<Strategy>& all) {
    strategies(axis, all);
    // A replicated input needs the kernel too: the arguments refer to strides of the whole tensor.
    all.push_back(alike(axis.call, Replicate{}, Replicate{}));
    for (Strategy& strategy : all) strategy.kernel = kernel;
  };
  return rule;
}

}  // namespace

void add_view_rules(NamedRules& rules) {
  FamilyRules family(rules, "views");
  family.add({"view", "_unsafe_view", "view_copy"}, sized(map_view, 1));
  family.add({"_reshape_alias", "_reshape_alias_copy"},
             with_kernel(sized(map_view, 1), reshape_alias));
  family.add({"transpose", "transpose_copy"}, mapped(map_transpose));
  family.add({"t", "t_copy"}, mapped(map_t));
  family.add({"permute", "permute_copy"}, mapped(map_permute));
  family.add({"select", "select_copy", "unbind", "unbind_copy"}, mapped(map_select));
  family.add({"slice", "slice_copy"}, with_recut(mapped(map_slice)));
  family.add({"split", "split_with_sizes", "split_copy", "split_with_sizes_copy"},
             with_recut(mapped(map_except)));
  family.add({"unsqueeze", "unsqueeze_copy"}, mapped(map_unsqueeze));
  family.add({"squeeze", "squeeze_copy"}, with_kernel(mapped(map_squeeze), squeeze));
  family.add({"expand", "expand_copy"}, sized(map_expand, 1));
  family.add({"diagonal", "diagonal_copy"}, mapped(map_diagonal));
  family.add({"unfold", "unfold_copy"}, mapped(map_unfold));
  family.add("view_as_complex", mapped(map_but_last, Partials::kSums));
  family.add("view.dtype", mapped(map_retyped, Partials::kNone));
  family.add("_conj", mapped(map_identity));
  family.add({"view_as_real", "_neg_view"}, mapped(map_identity, Partials::kSums));
  family.add("slice_backward", with_recut(sized(map_slice_backward, 1)));
  family.add("select_backward", sized(map_select_backward, 1));
}

}  // namespace trireme::tensor
