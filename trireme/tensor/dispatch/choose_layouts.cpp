// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/choose_layouts.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/redistribution/redistribution.h>

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

namespace trireme::tensor {
namespace {

// Assigns a dim to each axis from `axis` on, so that every dim gets the parts that are `left`.
bool assign(const DeviceMesh& mesh, int axis, std::vector<std::int64_t>& left,
            c10::SmallVector<Placement, 4>& placements) {
  if (axis == mesh.num_axes()) {
    return std::ranges::all_of(left, [](std::int64_t parts) { return parts == 1; });
  }
  const std::int64_t size = mesh.size(axis);
  for (std::size_t dim = 0; size > 1 && dim < left.size(); ++dim) {
    if (left[dim] % size != 0) continue;
    left[dim] /= size;
    placements.emplace_back(Shard{static_cast<int>(dim)});
    if (assign(mesh, axis + 1, left, placements)) return true;
    placements.pop_back();
    left[dim] *= size;
  }
  placements.emplace_back(Replicate{});
  if (assign(mesh, axis + 1, left, placements)) return true;
  placements.pop_back();
  return false;
}

// An error lists this many strategies, and looks at this many combinations to find them.
constexpr std::size_t kListed = 12;
constexpr int kLookedAt = 2000;

std::string sizes_of_inputs(const Call& call) {
  std::string text;
  for (const at::Tensor& input : call.inputs()) {
    if (is_number(input)) continue;
    text += join_message(text.empty() ? "" : ", ", input.sizes());
  }
  return text;
}

// Returns the number of parts of each dim of each input.
OperatorStrategy parts_of(const Call& call, c10::ArrayRef<Layout> layouts) {
  OperatorStrategy parts;
  for (int input = 0; input < call.num_inputs(); ++input) {
    const Layout& layout = layouts[static_cast<std::size_t>(input)];
    std::vector<std::int64_t>& of_input = parts.emplace_back();
    for (std::int64_t dim = 0; dim < call.input(input).dim(); ++dim) {
      std::int64_t product = 1;
      for (const int axis : layout.axes_of(dim)) product *= layout.mesh().size(axis);
      of_input.push_back(product);
    }
  }
  return parts;
}

// Returns true if every number of parts divides the wanted one: more axes may still reach it.
bool divide(const OperatorStrategy& parts, const OperatorStrategy& wanted) {
  for (std::size_t input = 0; input < parts.size(); ++input) {
    for (std::size_t dim = 0; dim < parts[input].size(); ++dim) {
      if (wanted[input][dim] % parts[input][dim] != 0) return false;
    }
  }
  return true;
}

// Returns the layouts that a rule sees before an axis is chosen: replicated, or Partial as they
// are.
std::vector<Layout> uncut(const OpenCall& open) {
  std::vector<Layout> layouts;
  for (const Layout& current : open.current) {
    c10::SmallVector<Placement, 4> placements;
    for (const Placement& placement : current.placements()) {
      placements.push_back(placement.is_partial() ? placement : Placement(Replicate{}));
    }
    layouts.emplace_back(open.mesh, placements);
  }
  return layouts;
}

// Returns the operator's strategies along one axis; the last one replicates all inputs.
std::vector<Strategy> options_along(const OpenCall& open, int axis, c10::ArrayRef<Layout> seen) {
  std::vector<Strategy> options;
  const AxisCall axis_call = {open.call, open.mesh.size(axis), seen, axis};
  if (open.strategies && open.mesh.size(axis) > 1) open.strategies(axis_call, options);
  Strategy& whole = options.emplace_back();
  whole.inputs.assign(static_cast<std::size_t>(open.call.num_inputs()), Placement(Replicate{}));
  return options;
}

// Returns the layouts after one axis took a strategy.
std::vector<Layout> with(c10::ArrayRef<Layout> layouts, int axis, const Strategy& strategy) {
  std::vector<Layout> all;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    all.push_back(layouts[i].with(axis, strategy.inputs[i]));
  }
  return all;
}

// Visits the combinations of the operator's strategies over the axes of the mesh. Two axes of the
// same size on which all inputs have the same placements are interchangeable; of such combinations
// one is visited.
class Combinations {
 public:
  /// `visit` gets the layouts of the inputs and returns false to stop. With `wanted`, only
  /// combinations are visited whose numbers of parts divide it.
  Combinations(const OpenCall& open, const OperatorStrategy* wanted,
               std::function<bool(const std::vector<Layout>&)> visit)
      : open_(open), wanted_(wanted), visit_(std::move(visit)) {}

  void go() const { descend(0, uncut(open_), 0); }

 private:
  bool descend(int axis, const std::vector<Layout>& seen, std::size_t option_before) const {
    if (axis == open_.mesh.num_axes()) return visit_(seen);
    const std::vector<Strategy> options = options_along(open_, axis, seen);
    const std::size_t first = axis > 0 && is_like_the_one_before(axis) ? option_before : 0;
    for (std::size_t option = first; option < options.size(); ++option) {
      if (!is_possible(options[option], axis)) continue;
      const std::vector<Layout> next = with(seen, axis, options[option]);
      if (wanted_ != nullptr && !divide(parts_of(open_.call, next), *wanted_)) continue;
      if (!descend(axis + 1, next, option)) return false;
    }
    return true;
  }

  bool is_like_the_one_before(int axis) const {
    return open_.mesh.size(axis) == open_.mesh.size(axis - 1) &&
           std::ranges::all_of(open_.current, [axis](const Layout& layout) {
             return is_same_ignoring_level(layout[axis], layout[axis - 1]);
           });
  }

  // An input becomes or stays Partial only where a sharded dim needs it or where it is Partial
  // already.
  bool is_possible(const Strategy& strategy, int axis) const {
    const bool cuts =
        std::ranges::any_of(strategy.inputs, [](const Placement& p) { return p.is_shard(); });
    for (int input = 0; input < open_.call.num_inputs(); ++input) {
      const auto index = static_cast<std::size_t>(input);
      const Placement& placement = strategy.inputs[index];
      if (placement.is_flat_shard()) return false;
      if (placement.is_shard() && placement.dim() >= open_.call.input(input).dim()) return false;
      if (placement.is_partial() && !cuts && !open_.current[index][axis].is_partial()) return false;
    }
    return true;
  }

  const OpenCall& open_;
  const OperatorStrategy* wanted_;
  std::function<bool(const std::vector<Layout>&)> visit_;
};

// Returns the estimated seconds to redistribute all inputs; infinity where that is not possible.
double seconds_to(const OpenCall& open, const std::vector<Layout>& layouts) {
  double total = 0;
  for (int input = 0; input < open.call.num_inputs(); ++input) {
    const auto index = static_cast<std::size_t>(input);
    const at::Tensor& tensor = open.call.input(input);
    try {
      total += redistribution_seconds(tensor.sizes(), tensor.scalar_type(), open.current[index],
                                      layouts[index]);
    } catch (const UsageError&) {
      return std::numeric_limits<double>::infinity();
    }
  }
  return total;
}

// Returns the strategies that the operator's rule allows, such as
// `{{4, 1}, {1, 1}}, {{2, 2}, {2, 1}} and 5 others`.
std::string allowed(const OpenCall& open) {
  std::vector<OperatorStrategy> all;
  int left = kLookedAt;
  Combinations(open, nullptr, [&](const std::vector<Layout>& layouts) {
    OperatorStrategy parts;
    const OperatorStrategy of_inputs = parts_of(open.call, layouts);
    for (int input = 0; input < open.call.num_inputs(); ++input) {
      if (is_number(open.call.input(input))) continue;
      parts.push_back(of_inputs[static_cast<std::size_t>(input)]);
    }
    if (std::ranges::find(all, parts) == all.end()) all.push_back(std::move(parts));
    return --left > 0;
  }).go();
  std::string text =
      list_text(all | std::views::take(kListed), ", ",
                [](const OperatorStrategy& strategy) { return trireme::to_string(strategy); });
  if (all.size() > kListed) text += join_message(" and ", all.size() - kListed, " others");
  return text;
}

[[noreturn]] void refuse(const OpenCall& open, const OperatorStrategy& strategy,
                         const std::string& why, const std::string& hint) {
  throw UsageError(
      join_message("operator ", open.name, " on ", sizes_of_inputs(open.call),
                   " was given the strategy ", trireme::to_string(strategy), ": ", why),
      hint);
}

// Throws unless the strategy has one tuple for each tensor and one number for each dim.
void check_form(const OpenCall& open, const OperatorStrategy& strategy) {
  std::vector<const at::Tensor*> tensors;
  for (const at::Tensor& input : open.call.inputs()) {
    if (!is_number(input)) tensors.push_back(&input);
  }
  if (strategy.size() != tensors.size()) {
    refuse(open, strategy,
           join_message(strategy.size(), strategy.size() == 1 ? " tuple" : " tuples",
                        " where it takes ", tensors.size(),
                        tensors.size() == 1 ? " tensor" : " tensors"),
           "give one tuple for each tensor, in the order of the operator's arguments; the strategy "
           "is for the first operator called under it");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const c10::IntArrayRef tuple = strategy[i];
    if (static_cast<std::int64_t>(tuple.size()) != tensors[i]->dim()) {
      refuse(open, strategy,
             join_message("tuple ", i, " has ", tuple.size(), " numbers, and the tensor of ",
                          tensors[i]->sizes(), " has ", tensors[i]->dim(), " dims"),
             "give one number for each dim, 1 where it is not cut");
    }
    if (std::ranges::any_of(tuple, [](std::int64_t number) { return number < 1; })) {
      refuse(open, strategy, join_message("tuple ", i, " has a number of parts below one"),
             "write 1 for a dim that is not cut");
    }
  }
}

// Returns the tuples with empty ones added for numbers, to which a strategy gives none.
OperatorStrategy by_input(const Call& call, const OperatorStrategy& strategy) {
  OperatorStrategy all;
  std::size_t next = 0;
  for (const at::Tensor& input : call.inputs()) {
    all.push_back(is_number(input) ? std::vector<std::int64_t>() : strategy[next++]);
  }
  return all;
}

// Returns true if the strategy shards data along dim 0 of inputs and output, and nothing else.
bool is_by_batch(const OpenCall& open, const Strategy& strategy,
                 const std::vector<bool>& is_parameter) {
  bool has_data = false;
  for (int input = 0; input < open.call.num_inputs(); ++input) {
    const auto index = static_cast<std::size_t>(input);
    const Placement& placement = strategy.inputs[index];
    if (placement.is_replicate()) continue;
    const at::Tensor& tensor = open.call.input(input);
    if (!placement.is_shard(0) || is_parameter[index] || tensor.dim() == 0) return false;
    if (tensor.size(0) == 0 || tensor.size(0) % open.mesh.size() != 0) return false;
    has_data = true;
  }
  if (!has_data || strategy.outputs.empty()) return false;
  const Placement& out = strategy.outputs.front();
  const bool has_dims = open.call.num_outputs() > 0 && open.call.output(0).dim() > 0;
  return out.is_shard(0) || (!out.is_shard() && !has_dims);
}

}  // namespace

std::optional<Layout> find_layout(const DeviceMesh& mesh, c10::IntArrayRef parts) {
  std::vector<std::int64_t> left(parts.begin(), parts.end());
  c10::SmallVector<Placement, 4> placements;
  if (!assign(mesh, 0, left, placements)) return std::nullopt;
  return Layout(mesh, placements);
}

std::optional<Obstacle> obstacle_to(const DeviceMesh& mesh, c10::IntArrayRef parts) {
  std::int64_t product = 1;
  for (const std::int64_t number : parts) {
    product = number > mesh.size() ? number : product * number;
    if (product > mesh.size()) break;
  }
  const std::string divisors = join_message("give numbers whose product divides ", mesh.size());
  if (product > mesh.size()) {
    const auto num_cut = std::ranges::count_if(parts, [](std::int64_t n) { return n > 1; });
    return Obstacle{
        join_message("makes more parts of a tensor than there are devices (", mesh.size(), ")",
                     num_cut < 2 ? "" : ": those that cut one dim cannot cut another as well"),
        divisors};
  }
  if (mesh.size() % product != 0) {
    return Obstacle{
        join_message("makes ", product, " parts of a tensor, which does not divide the ",
                     mesh.size(), " devices"),
        divisors};
  }
  if (find_layout(mesh, parts)) return std::nullopt;
  return Obstacle{join_message("is not what axes of the mesh ", mesh.to_string(), " can cut"),
                  "make the mesh with trireme::devices_mesh(group), which has an axis for each "
                  "prime factor of the number of ranks"};
}

bool is_same_ignoring_level(const Placement& a, const Placement& b) {
  return a.is_shard() && b.is_shard() ? a.dim() == b.dim() : a == b;
}

bool is_number(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

std::vector<Layout> layouts_by_strategy(const OpenCall& open, const OperatorStrategy& strategy) {
  check_form(open, strategy);
  if (open.mesh.size() == 1) return open.current.vec();
  for (std::size_t i = 0; i < strategy.size(); ++i) {
    const auto obstacle = obstacle_to(open.mesh, strategy[i]);
    if (!obstacle) continue;
    refuse(open, strategy, join_message("tuple ", i, " ", obstacle->what), obstacle->hint);
  }
  const OperatorStrategy wanted = by_input(open.call, strategy);
  std::vector<Layout> best;
  double least = std::numeric_limits<double>::infinity();
  Combinations(open, &wanted, [&](const std::vector<Layout>& layouts) {
    if (parts_of(open.call, layouts) != wanted) return true;
    const double cost = seconds_to(open, layouts);
    if (cost < least) {
      least = cost;
      best = layouts;
    }
    return true;
  }).go();
  if (best.empty()) {
    refuse(open, strategy,
           join_message("these cuts do not go together on ", open.mesh.size(),
                        " devices, or the operator cannot be cut so"),
           "it can be cut as " + allowed(open));
  }
  return best;
}

std::optional<std::vector<Layout>> layouts_by_batch(const OpenCall& open,
                                                    const std::vector<bool>& is_parameter) {
  std::vector<Layout> layouts = uncut(open);
  for (int axis = 0; axis < open.mesh.num_axes(); ++axis) {
    const std::vector<Strategy> options = options_along(open, axis, layouts);
    if (open.mesh.size(axis) == 1) {
      layouts = with(layouts, axis, options.back());
      continue;
    }
    const auto chosen = std::ranges::find_if(options, [&](const Strategy& strategy) {
      return is_by_batch(open, strategy, is_parameter);
    });
    if (chosen == options.end()) return std::nullopt;
    layouts = with(layouts, axis, *chosen);
  }
  if (open.mesh.size() == 1) return std::nullopt;
  return layouts;
}

}  // namespace trireme::tensor
