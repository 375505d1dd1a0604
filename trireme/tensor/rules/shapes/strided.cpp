// SPDX-License-Identifier: Apache-2.0
// as_strided: autograd regenerates views with it after in-place operations, in terms of the whole
// tensor's strides. The view is read back into what made it: elements taken from dims, and an order
// of dims.
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/strategies/sizes.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace trireme::tensor {
namespace {

// What a view takes of one dim of the tensor.
struct Taken {
  std::int64_t start = 0;
  std::int64_t step = 1;
  int place = -1;  // in the view; -1: one element, the dim is gone
};

// The dims of a tensor, the one with the largest steps first.
std::vector<std::size_t> outer_first(const at::Tensor& tensor) {
  std::vector<std::size_t> order(static_cast<std::size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return tensor.stride(static_cast<std::int64_t>(a)) >
           tensor.stride(static_cast<std::int64_t>(b));
  });
  return order;
}

// The dim of the view that walks along a dim of that stride and size, of those not used yet.
int walker(const at::Tensor& view, std::vector<bool>& is_used, std::int64_t stride,
           std::int64_t size, std::int64_t start) {
  for (std::int64_t dim = 0; dim < view.dim(); ++dim) {
    const auto index = static_cast<std::size_t>(dim);
    if (is_used[index] || view.size(dim) == 1 || view.stride(dim) % stride != 0) continue;
    const std::int64_t step = view.stride(dim) / stride;
    if (step == 0 || start + (view.size(dim) - 1) * step >= size) continue;
    is_used[index] = true;
    return static_cast<int>(dim);
  }
  return -1;
}

// What is taken of each dim; none where the view overlaps, repeats or mixes dims.
std::optional<std::vector<Taken>> read_back(const at::Tensor& tensor, const at::Tensor& view) {
  std::vector<Taken> taken(static_cast<std::size_t>(tensor.dim()));
  std::vector<bool> is_used(static_cast<std::size_t>(view.dim()), false);
  std::int64_t rest = view.storage_offset() - tensor.storage_offset();
  if (rest < 0 || tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense())
    return std::nullopt;
  for (const std::size_t dim : outer_first(tensor)) {
    const std::int64_t size = tensor.size(static_cast<std::int64_t>(dim));
    const std::int64_t stride =
        std::max<std::int64_t>(tensor.stride(static_cast<std::int64_t>(dim)), 1);
    if (size == 1) continue;
    Taken& its = taken[dim];
    its.start = rest / stride;
    if (its.start >= size) return std::nullopt;
    rest -= its.start * stride;
    its.place = walker(view, is_used, stride, size, its.start);
    if (its.place >= 0) its.step = view.stride(its.place) / stride;
  }
  for (std::int64_t dim = 0; dim < view.dim(); ++dim) {
    if (!is_used[static_cast<std::size_t>(dim)] && view.size(dim) != 1) return std::nullopt;
  }
  return rest == 0 ? std::optional(taken) : std::nullopt;
}

bool takes_all(const Taken& taken, const at::Tensor& tensor, const at::Tensor& view,
               std::int64_t dim) {
  return taken.place >= 0 && taken.step == 1 && view.size(taken.place) == tensor.size(dim);
}

// Does to the part what was done to the whole.
void take(LocalCall& call) {
  const at::Tensor& whole = call.call().input(0);
  const at::Tensor& view = call.call().output(0);
  const auto taken = read_back(whole, view);
  at::Tensor part = call.tensor(0);
  std::vector<std::int64_t> order(static_cast<std::size_t>(view.dim()), -1);
  std::int64_t dim_of_part = 0;
  for (std::int64_t dim = 0; dim < whole.dim(); ++dim) {
    const Taken& its = (*taken)[static_cast<std::size_t>(dim)];
    if (its.place < 0) {
      part = part.select(dim_of_part, its.start);
      continue;
    }
    order[static_cast<std::size_t>(its.place)] = dim_of_part;
    if (!takes_all(its, whole, view, dim)) {
      const std::int64_t end = its.start + (view.size(its.place) - 1) * its.step + 1;
      part = part.slice(dim_of_part, its.start, end, its.step);
    }
    ++dim_of_part;
  }
  for (std::int64_t& place : order) {
    if (place >= 0) continue;
    part = part.unsqueeze(-1);  // a dim of size one that no dim of the whole became
    place = part.dim() - 1;
  }
  call.give({part.permute(order)});
}

// A gathered tensor lies in memory of its own: first as the whole one does.
void take_of_gathered(LocalCall& call) {
  const at::Tensor& whole = call.call().input(0);
  const at::Tensor& view = call.call().output(0);
  const at::Tensor gathered =
      at::empty_strided(whole.sizes(), whole.strides(), call.tensor(0).options());
  gathered.copy_(call.tensor(0));
  call.give({gathered.as_strided(view.sizes(), view.strides(),
                                 view.storage_offset() - whole.storage_offset())});
}

void strategies(const AxisCall& axis, std::vector<Strategy>& all) {
  const at::Tensor& whole = axis.call.input(0);
  const at::Tensor& view = axis.call.output(0);
  const auto taken = read_back(whole, view);
  Strategy& gathered = all.emplace_back(alike(axis.call, Replicate{}, Replicate{}));
  gathered.kernel = taken ? take : take_of_gathered;
  if (!taken) return;
  for (std::int64_t dim = 0; dim < whole.dim(); ++dim) {
    const Taken& its = (*taken)[static_cast<std::size_t>(dim)];
    if (!takes_all(its, whole, view, dim)) continue;
    Strategy strategy = alike(axis.call, Shard{static_cast<int>(dim)}, Shard{its.place});
    strategy.kernel = take;
    all.push_back(std::move(strategy));
  }
  const Placement& current = axis.layouts[0][axis.axis];
  if (!current.is_partial()) return;
  Strategy strategy = alike(axis.call, current, current);
  strategy.kernel = take;
  all.push_back(std::move(strategy));
}

}  // namespace

void add_strided_rules(NamedRules& rules) {
  rules.emplace_back("aten::as_strided", Rule{.strategies = strategies, .family = "views"});
}

}  // namespace trireme::tensor
