// SPDX-License-Identifier: Apache-2.0
// The rule of as_strided, with which autograd regenerates views after in-place operators, in
// strides of the whole tensor. A sharded dim of the whole corresponds to the dim of the view that
// covers the same range of memory: the dim itself, or what it was split into or merged with.
#include <trireme/base/error.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trireme::tensor {
namespace {

using Sizes = c10::SmallVector<std::int64_t, 5>;

// Returns the number of elements that a dim and all dims within it cover in memory.
std::int64_t span_of(const at::Tensor& tensor, std::int64_t dim) {
  return tensor.stride(dim) * tensor.size(dim);
}

// Returns true if steps along the dim move in memory.
bool moves(const at::Tensor& view, std::int64_t dim) {
  return view.size(dim) > 1 && view.stride(dim) > 0;
}

std::int64_t offset_in(const at::Tensor& whole, const at::Tensor& view) {
  return view.storage_offset() - whole.storage_offset();
}

// Returns true if the view consists of elements of `whole`, and `whole` has no gaps.
bool is_within(const at::Tensor& whole, const at::Tensor& view) {
  std::int64_t last = offset_in(whole, view);
  if (last < 0 || whole.numel() == 0 || view.numel() == 0) return false;
  for (std::int64_t dim = 0; dim < view.dim(); ++dim) {
    last += (view.size(dim) - 1) * view.stride(dim);
  }
  return last < whole.numel() && whole.is_non_overlapping_and_dense();
}

// Returns the dim of the view that is sharded if `dim` of the whole is sharded into `parts`; -1 if
// no part of the view is a view of a part. Each step of the view either stays within the span of
// one index of the outer dims, or is a multiple of this span. Of the dims that stay within, the
// outermost must cover the whole span. If it is not the same dim as `dim`, both sizes must divide
// by `parts`.
int cut_of_strided(const at::Tensor& whole, const at::Tensor& view, std::int64_t dim,
                   std::int64_t parts) {
  const std::int64_t span = span_of(whole, dim);
  if (whole.size(dim) <= 1) return -1;
  int outermost = -1;
  std::int64_t last_within = offset_in(whole, view) % span;
  for (std::int64_t d = 0; d < view.dim(); ++d) {
    if (!moves(view, d)) continue;
    if (view.stride(d) >= span) {
      if (view.stride(d) % span != 0) return -1;
      continue;
    }
    last_within += (view.size(d) - 1) * view.stride(d);
    if (outermost < 0 || view.stride(d) > view.stride(outermost)) outermost = static_cast<int>(d);
  }
  if (outermost < 0 || span_of(view, outermost) != span) return -1;
  last_within -= (view.size(outermost) - 1) * view.stride(outermost);
  if (last_within >= view.stride(outermost)) return -1;
  const bool is_same = view.size(outermost) == whole.size(dim);
  const bool divides = whole.size(dim) % parts == 0 && view.size(outermost) % parts == 0;
  return is_same || divides ? outermost : -1;
}

// Converts a distance in elements of the whole into one in a part of those sizes and strides.
// Outside a sharded dim, elements of a part are closer together.
std::int64_t in_part(std::int64_t distance, const at::Tensor& whole, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides) {
  std::int64_t span = 1;
  std::int64_t span_of_part = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    const bool is_cut = sizes[d] != whole.size(dim);
    if (!is_cut || span_of(whole, dim) > distance || span_of(whole, dim) <= span) continue;
    span = span_of(whole, dim);
    span_of_part = strides[d] * sizes[d];
  }
  return distance / span * span_of_part + distance % span;
}

// Returns the offset of the view in a part: the offset in the whole is split among the dims.
std::int64_t offset_in_part(const at::Tensor& whole, const at::Tensor& view, c10::IntArrayRef sizes,
                            c10::IntArrayRef strides) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    if (whole.size(dim) <= 1) continue;
    offset += offset_in(whole, view) / whole.stride(dim) % whole.size(dim) * strides[d];
  }
  return offset;
}

// Returns the part in the memory order of the whole. It is copied only if it was gathered into
// memory of another order.
at::Tensor in_order(const at::Tensor& part, c10::IntArrayRef strides) {
  bool is_in_order = true;
  for (std::int64_t dim = 0; dim < part.dim(); ++dim) {
    const bool matters = part.size(dim) > 1 && part.numel() > 0;
    is_in_order =
        is_in_order && (!matters || part.stride(dim) == strides[static_cast<std::size_t>(dim)]);
  }
  if (is_in_order) return part;
  return at::empty_strided(part.sizes(), strides, part.options()).copy_(part);
}

// Takes the view of the local part that corresponds to the view of the whole.
void take(LocalCall& call) {
  const at::Tensor& whole = call.call().input(0);
  const at::Tensor& view = call.call().output(0);
  at::Tensor part = call.tensor(0);
  Sizes sizes(view.sizes().begin(), view.sizes().end());
  Sizes strides(view.strides().begin(), view.strides().end());
  std::int64_t offset = offset_in(whole, view);
  if (part.sizes() == whole.sizes()) {
    part = in_order(part, whole.strides());
  } else {
    const Sizes strides_of_part = dense_strides(whole.strides(), part.sizes());
    part = in_order(part, strides_of_part);
    offset = offset_in_part(whole, view, part.sizes(), strides_of_part);
    sizes = local_output_sizes(call, 0);
    for (std::int64_t& stride : strides) {
      stride = in_part(stride, whole, part.sizes(), strides_of_part);
    }
  }
  offset += part.storage_offset();
  call.give({call.call().is_in_place() ? part.as_strided_(sizes, strides, offset)
                                       : part.as_strided(sizes, strides, offset)});
}

Strategy taken(const Call& call, Placement input, Placement output) {
  Strategy strategy = alike(call, input, output);
  strategy.kernel = take;
  return strategy;
}

// Throws unless the tensor can stay as it is: an in-place call must not change the shape of a
// tensor that is redistributed for it, since it is redistributed back afterwards.
void expect_no_move(const AxisCall& axis, const std::vector<Strategy>& strategies) {
  const Placement& current = axis.layouts[0][axis.axis];
  const bool stays = std::ranges::any_of(strategies, [&](const Strategy& strategy) {
    const Placement& input = strategy.inputs[0];
    return input == current || (input.is_shard() && current.is_shard(input.dim()));
  });
  if (stays) return;
  throw UsageError(
      join_message("operator ", axis.call.name(), " cannot make a tensor of ",
                   axis.call.input(0).sizes(), ", which is ", axis.layouts[0].to_string(),
                   ", one of ", axis.call.output(0).sizes(), " and strides ",
                   axis.call.output(0).strides(), " in place without communication"),
      "redistribute the tensor to Replicate first, or use as_strided, which makes a "
      "copy where it has to");
}

void strategies(const AxisCall& axis, std::vector<Strategy>& all) {
  const at::Tensor& whole = axis.call.input(0);
  const at::Tensor& view = axis.call.output(0);
  const Placement& current = axis.layouts[0][axis.axis];
  all.push_back(taken(axis.call, Replicate{}, Replicate{}));
  if (current.is_partial()) all.push_back(taken(axis.call, current, current));
  if (is_within(whole, view)) {
    for (std::int64_t dim = 0; dim < whole.dim(); ++dim) {
      const int place = cut_of_strided(whole, view, dim, axis.parts(0, dim));
      if (place < 0) continue;
      all.push_back(taken(axis.call, Shard{static_cast<int>(dim)}, Shard{place}));
    }
  }
  if (axis.call.is_in_place()) expect_no_move(axis, all);
}

}  // namespace

void add_strided_rules(NamedRules& rules) {
  FamilyRules family(rules, "views");
  family.add("as_strided", {.strategies = strategies});
}

}  // namespace trireme::tensor
