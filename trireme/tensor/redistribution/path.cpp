// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/redistribution/path.h>

#include <trireme/base/error.h>
#include <trireme/cluster/collective_cost.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/redistribution/partials.h>
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

namespace trireme::tensor {
namespace {

using Kind = RedistributionStep::Kind;

// A placement as a number: 0 is Replicate, and 1 to 5 are Partial. 6 and 7 are the FlatShard at the
// start and at the end of the path. From 8 on it is Shard, with eight levels for every dim.
using Code = std::uint16_t;
constexpr Code kReplicate = 0;
constexpr Code kPartial = 1;
constexpr Code kFlatFrom = 6;
constexpr Code kFlatTo = 7;
constexpr Code kShard = 8;
constexpr std::size_t kMaximumAxes = 8;  // an axis more could need a ninth level

bool is_partial(Code code) { return code >= kPartial && code < kFlatFrom; }
bool is_flat(Code code) { return code == kFlatFrom || code == kFlatTo; }
bool is_shard(Code code) { return code >= kShard; }
std::size_t dim_of(Code code) { return (code - kShard) / kMaximumAxes; }
std::size_t level_of(Code code) { return (code - kShard) % kMaximumAxes; }
PartialOp op_of(Code code) { return static_cast<PartialOp>(code - kPartial); }
Code shard_code(std::size_t dim, std::size_t level) {
  return static_cast<Code>(kShard + dim * kMaximumAxes + level);
}

// The placements on the axes that have several ranks.
struct State {
  std::array<Code, kMaximumAxes> codes = {};
  bool operator==(const State&) const = default;
};

struct HashOfState {
  std::size_t operator()(const State& state) const noexcept {
    const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(state.codes);
    std::uint64_t hash = (words[0] ^ (words[1] * 0x9E3779B97F4A7C15U)) * 0xD1B54A32D192ED03U;
    return hash ^ (hash >> 29U);
  }
};

// One search. Dims are numbered in memory order throughout.
class Search {
 public:
  Search(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype, const Layout& from,
         const Layout& to, at::MemoryFormat format);

  std::vector<PathStep> run();

 private:
  struct Node {
    State state;
    double seconds;
    int parent;
    int axis;
    Kind kind;
    double step_seconds;
    double step_bytes;
    bool is_done = false;
  };
  struct Cost {
    double seconds;
    double bytes;
  };
  // What the rank at the first coordinate holds, whose parts are the longest.
  struct Held {
    Sizes sizes;
    Sizes cuts;  // the number of parts of each dim
    double elements;
  };

  State state_of(const Layout& layout, Code flat) const;
  void choose_dims(const State& from, const State& to);
  void choose_candidates(const State& from, const State& to);

  std::size_t num_cuts(const State& state, std::size_t dim) const;
  bool has_flat(const State& state) const;
  bool has_shards_beside(const State& state, std::size_t axis) const;
  std::optional<Kind> kind_of(const State& state, std::size_t axis, Code target) const;

  Held held(const State& state) const;
  bool is_cut_in_place(const Held& held, std::size_t dim, std::int64_t parts) const;
  bool is_flat_in_place(Code flat) const;
  Cost cost_of(Kind kind, std::size_t axis, Code from, Code to, const Held& before,
               const Held& after) const;
  void relax(int from, const Held& before, std::size_t axis, Code target);

  Placement placement_of(Code code, std::size_t num_cuts) const;
  PathStep step_of(const Node& node) const;

  const DeviceMesh::State& mesh_;
  Dims order_;
  Sizes sizes_;  // in memory order
  double item_bytes_;
  double elements_;
  c10::SmallVector<int, 8> axes_;  // the mesh axes that have several ranks
  c10::SmallVector<std::int64_t, 8> parts_;
  std::size_t num_mesh_axes_;
  Placement flat_from_, flat_to_;
  c10::SmallVector<std::size_t, 5> dims_;  // the dims that steps may shard
  std::array<c10::SmallVector<Code, 8>, kMaximumAxes> candidates_;
  State from_, to_;

  using Entry = std::pair<double, int>;
  std::vector<Node> nodes_;
  ska::flat_hash_map<State, int, HashOfState> index_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

Search::Search(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype, const Layout& from,
               const Layout& to, at::MemoryFormat format)
    : mesh_(*from.mesh_state()),
      order_(memory_order(format, sizes.size())),
      sizes_(in_order(sizes, order_)),
      item_bytes_(static_cast<double>(c10::elementSize(dtype))),
      elements_(static_cast<double>(c10::multiply_integers(sizes))),
      num_mesh_axes_(from.placements().size()) {
  const std::vector<MeshAxis>& axes = from.mesh_state()->axes;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    const auto at = static_cast<int>(axis);
    if (from[at].is_flat_shard()) flat_from_ = from[at];
    if (to[at].is_flat_shard()) flat_to_ = to[at];
    // A FlatShard changes the shape of the tensor, on a single rank too.
    if (axes[axis].size == 1 && !from[at].is_flat_shard() && !to[at].is_flat_shard()) continue;
    axes_.push_back(at);
    parts_.push_back(axes[axis].size);
  }
  if (axes_.size() > kMaximumAxes) {
    throw UsageError(join_message("a redistribution over mesh ", from.mesh().to_string(), ", with ",
                                  axes_.size(), " axes of several ranks, at most ", kMaximumAxes),
                     "arrange the ranks in fewer axes");
  }
  if (format != at::MemoryFormat::Contiguous &&
      (flat_from_.is_flat_shard() || flat_to_.is_flat_shard())) {
    throw UsageError(join_message("a redistribution of a FlatShard in memory format ", format),
                     "a flattened tensor is row-major: leave the format out");
  }
  from_ = state_of(from, kFlatFrom);
  to_ = state_of(to, flat_to_ == flat_from_ ? kFlatFrom : kFlatTo);
  choose_dims(from_, to_);
  choose_candidates(from_, to_);
}

State Search::state_of(const Layout& layout, Code flat) const {
  State state;
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    const Placement& placement = layout[axes_[axis]];
    if (parts_[axis] == 1 && !placement.is_flat_shard()) continue;
    if (placement.is_partial()) {
      state.codes[axis] = static_cast<Code>(kPartial + static_cast<Code>(placement.op()));
    } else if (placement.is_flat_shard()) {
      state.codes[axis] = flat;
    } else if (placement.is_shard()) {
      const auto dim =
          static_cast<std::size_t>(std::ranges::find(order_, placement.dim()) - order_.begin());
      // Levels are numbered anew, because axes of one rank are left out.
      std::size_t level = 0;
      for (const int other : axes_) {
        const Placement& cut = layout[other];
        level += cut.is_shard(placement.dim()) && cut.level() < placement.level() ? 1 : 0;
      }
      state.codes[axis] = shard_code(dim, level);
    }
  }
  return state;
}

// Chooses the dims that steps may shard. In a small problem these are all dims. Otherwise they are
// the dims that both ends shard, and one more that divides evenly: it allows a reduce-scatter
// followed by an all-gather, and a detour where an outer level has to change.
void Search::choose_dims(const State& from, const State& to) {
  const auto add = [&](std::size_t dim) {
    if (std::ranges::find(dims_, dim) == dims_.end()) dims_.push_back(dim);
  };
  std::int64_t ranks = 1;
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    ranks *= parts_[axis];
    if (is_shard(from.codes[axis])) add(dim_of(from.codes[axis]));
    if (is_shard(to.codes[axis])) add(dim_of(to.codes[axis]));
  }
  if (axes_.size() > 3) return;
  constexpr std::size_t kAllDims = 4;
  const std::size_t wanted = axes_.size() <= 2 ? kAllDims : dims_.size() + 1;
  for (const bool must_divide : {true, false}) {
    for (std::size_t dim = 0; dim < sizes_.size() && dims_.size() < wanted; ++dim) {
      if (!must_divide || sizes_[dim] % ranks == 0) add(dim);
    }
  }
}

// Chooses the placements that each axis may take on the way.
void Search::choose_candidates(const State& from, const State& to) {
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    auto& candidates = candidates_[axis];
    const auto add = [&](Code code) {
      if (is_shard(code)) code = shard_code(dim_of(code), 0);
      if (std::ranges::find(candidates, code) == candidates.end()) candidates.push_back(code);
    };
    add(kReplicate);
    add(from.codes[axis]);
    add(to.codes[axis]);
    if (axes_.size() > 3) continue;
    for (const std::size_t dim : dims_) add(shard_code(dim, 0));
  }
}

std::size_t Search::num_cuts(const State& state, std::size_t dim) const {
  std::size_t cuts = 0;
  for (const Code code : state.codes) cuts += is_shard(code) && dim_of(code) == dim ? 1 : 0;
  return cuts;
}

bool Search::has_flat(const State& state) const {
  return std::ranges::any_of(state.codes, is_flat);
}

bool Search::has_shards_beside(const State& state, std::size_t axis) const {
  for (std::size_t other = 0; other < axes_.size(); ++other) {
    if (other != axis && is_shard(state.codes[other])) return true;
  }
  return false;
}

// Returns the kind of the step that gives `axis` another placement; nullopt if there is none. Only
// the last level of a dim can be removed, a new one becomes the last, and a FlatShard must be
// alone.
std::optional<Kind> Search::kind_of(const State& state, std::size_t axis, Code target) const {
  const Code code = state.codes[axis];
  if (code == target) return {};
  if (is_shard(code) && level_of(code) + 1 != num_cuts(state, dim_of(code))) return {};
  if (is_shard(code) && is_shard(target)) {
    if (dim_of(code) == dim_of(target)) return {};
    return Kind::kAllToAll;
  }
  const bool is_cut = is_shard(code) || is_flat(code);
  if (target == kReplicate) return is_cut ? Kind::kAllGather : Kind::kAllReduce;
  if (is_partial(target)) {
    if (is_partial(code) || (is_cut && op_of(target) == PartialOp::kAverage)) return {};
    for (const Code other : state.codes) {
      if (is_partial(other) && !commute(op_of(other), op_of(target))) return {};
    }
    return Kind::kToPartial;
  }
  if (is_cut || has_flat(state)) return {};
  if (is_flat(target) && has_shards_beside(state, axis)) return {};
  return code == kReplicate ? Kind::kSlice : Kind::kReduceScatter;
}

// Returns the longest parts that a rank holds in a state.
Search::Held Search::held(const State& state) const {
  Held held{.sizes = sizes_, .cuts = Sizes(sizes_.size(), 1), .elements = 1};
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    const Code code = state.codes[axis];
    if (is_shard(code)) held.cuts[dim_of(code)] *= parts_[axis];
    if (!is_flat(code)) continue;
    std::int64_t longest = 0;
    for (const FlatRange& range : (code == kFlatFrom ? flat_from_ : flat_to_).ranges()) {
      longest = std::max(longest, range.length);
    }
    held.elements = static_cast<double>(longest);
    return held;
  }
  for (std::size_t dim = 0; dim < sizes_.size(); ++dim) {
    held.sizes[dim] = (sizes_[dim] + held.cuts[dim] - 1) / held.cuts[dim];
    held.elements *= static_cast<double>(held.sizes[dim]);
  }
  return held;
}

// Returns true if the parts of a dim, divided into `parts` in all, are contiguous pieces of equal
// length. A collective then reads or writes them in place.
bool Search::is_cut_in_place(const Held& held, std::size_t dim, std::int64_t parts) const {
  return sizes_[dim] % parts == 0 &&
         c10::numelements_to_dim(static_cast<int>(dim), c10::IntArrayRef(held.sizes)) == 1;
}

bool Search::is_flat_in_place(Code flat) const {
  std::int64_t offset = 0;
  const auto& ranges = (flat == kFlatFrom ? flat_from_ : flat_to_).ranges();
  for (const FlatRange& range : ranges) {
    if (range.offset != offset || range.length != ranges.front().length) return false;
    offset += range.length;
  }
  return true;
}

// Estimates a step: latency and bandwidth of its collective, and the copies around it.
Search::Cost Search::cost_of(Kind kind, std::size_t axis, Code from, Code to, const Held& before,
                             const Held& after) const {
  const std::int64_t ranks = parts_[axis];
  const auto count = static_cast<double>(ranks);
  Cost cost{.seconds = kStepSeconds, .bytes = 0};
  const cluster::LocalCopy local = copy_along(
      mesh_, axes_[axis], {.seconds = kCopySeconds, .bytes_per_second = kCopyBytesPerSecond});
  const auto fold = [&](double elements) {
    cost.seconds += elements * item_bytes_ / local.bytes_per_second;
  };
  const auto copy = [&](double elements) {
    cost.seconds += local.seconds + elements * item_bytes_ / local.bytes_per_second;
  };
  const auto collective = [&](Collective which, double elements) {
    const double bytes = elements_ == 0 ? 0 : elements * item_bytes_;
    cost.seconds += kCallSeconds + seconds_along(mesh_, axes_[axis], which, bytes);
    cost.bytes = trireme::bytes_sent(which, bytes, ranks);
  };
  const auto is_in_place = [&](Code code, const Held& whole, const Held& part) {
    return is_flat(code) ? is_flat_in_place(code)
                         : is_cut_in_place(whole, dim_of(code), part.cuts[dim_of(code)]);
  };
  switch (kind) {
    case Kind::kAllGather:
      collective(Collective::kAllGather, count * before.elements);
      if (!is_in_place(from, after, before)) copy(after.elements);
      break;
    case Kind::kReduceScatter:
      collective(Collective::kReduceScatter, count * after.elements);
      fold(before.elements);
      if (!is_in_place(to, before, after)) copy(count * after.elements);
      break;
    case Kind::kAllReduce:
      // It works in a copy of the tensor, which costs as much as the results of a reduce-scatter
      // and an all-gather together.
      collective(Collective::kAllReduce, before.elements);
      fold(before.elements);
      break;
    case Kind::kAllToAll: {
      // A message between two ranks is sharded along both dims.
      double slot = 1;
      for (std::size_t dim = 0; dim < sizes_.size(); ++dim) {
        slot *= static_cast<double>(std::min(before.sizes[dim], after.sizes[dim]));
      }
      collective(Collective::kAllToAll, count * count * slot);
      if (!is_in_place(to, before, after)) copy(before.elements);
      if (!is_in_place(from, after, before)) copy(after.elements);
      break;
    }
    case Kind::kSlice:
      // A slice that is one contiguous piece of memory needs no copy.
      if (is_shard(to) && c10::numelements_to_dim(static_cast<int>(dim_of(to)),
                                                  c10::IntArrayRef(before.sizes)) != 1) {
        copy(after.elements);
      }
      break;
    case Kind::kToPartial:
      copy(after.elements);
      if (from != kReplicate) copy(before.elements);
      break;
  }
  return cost;
}

// Offers a way to the state in which `axis` has the placement `target`.
void Search::relax(int from, const Held& before, std::size_t axis, Code target) {
  State state = nodes_[static_cast<std::size_t>(from)].state;
  const Code code = state.codes[axis];
  const std::optional<Kind> kind = kind_of(state, axis, target);
  if (!kind) return;
  state.codes[axis] =
      is_shard(target) ? shard_code(dim_of(target), num_cuts(state, dim_of(target))) : target;
  const auto found = index_.find(state);
  if (found != index_.end() && nodes_[static_cast<std::size_t>(found->second)].is_done) return;
  const Cost cost = cost_of(*kind, axis, code, target, before, held(state));
  const Node node{.state = state,
                  .seconds = nodes_[static_cast<std::size_t>(from)].seconds + cost.seconds,
                  .parent = from,
                  .axis = static_cast<int>(axis),
                  .kind = *kind,
                  .step_seconds = cost.seconds,
                  .step_bytes = cost.bytes};
  if (found == index_.end()) {
    const auto index = static_cast<int>(nodes_.size());
    index_.emplace(state, index);
    nodes_.push_back(node);
    queue_.emplace(node.seconds, index);
  } else if (node.seconds < nodes_[static_cast<std::size_t>(found->second)].seconds) {
    nodes_[static_cast<std::size_t>(found->second)] = node;
    queue_.emplace(node.seconds, found->second);
  }
}

std::vector<PathStep> Search::run() {
  if (from_ == to_) return {};
  index_.reserve(64);
  nodes_.reserve(64);
  nodes_.push_back({.state = from_,
                    .seconds = 0,
                    .parent = -1,
                    .axis = 0,
                    .kind = Kind::kSlice,
                    .step_seconds = 0,
                    .step_bytes = 0});
  index_.emplace(from_, 0);
  queue_.emplace(0.0, 0);
  while (!queue_.empty()) {
    const int index = queue_.top().second;
    queue_.pop();
    Node& node = nodes_[static_cast<std::size_t>(index)];
    if (node.is_done) continue;
    node.is_done = true;
    if (node.state == to_) {
      std::vector<PathStep> steps;
      for (int at = index; at != 0; at = nodes_[static_cast<std::size_t>(at)].parent) {
        steps.push_back(step_of(nodes_[static_cast<std::size_t>(at)]));
      }
      std::ranges::reverse(steps);
      return steps;
    }
    const Held before = held(node.state);  // relax() may move `node` when the list grows
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      for (const Code target : candidates_[axis]) relax(index, before, axis, target);
    }
  }
  throw InternalError("no path between two layouts",
                      "this is a defect in Trireme; please report it");
}

Placement Search::placement_of(Code code, std::size_t num_cuts) const {
  if (is_shard(code)) {
    return Shard{.dim = order_[dim_of(code)],
                 .level = num_cuts == 1 ? -1 : static_cast<int>(level_of(code))};
  }
  if (is_partial(code)) return Partial{op_of(code)};
  if (is_flat(code)) return code == kFlatFrom ? flat_from_ : flat_to_;
  return Replicate{};
}

PathStep Search::step_of(const Node& node) const {
  PathStep step{.kind = node.kind,
                .axis = axes_[static_cast<std::size_t>(node.axis)],
                .after = {},
                .bytes_sent = node.step_bytes,
                .seconds = node.step_seconds};
  step.after.assign(num_mesh_axes_, Placement());
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    const Code code = node.state.codes[axis];
    step.after[static_cast<std::size_t>(axes_[axis])] =
        placement_of(code, is_shard(code) ? num_cuts(node.state, dim_of(code)) : 0);
  }
  return step;
}

}  // namespace

std::vector<PathStep> find_path(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                                const Layout& from, const Layout& to, at::MemoryFormat format) {
  check_partials(from, dtype);
  check_partials(to, dtype);
  return Search(sizes, dtype, from, to, format).run();
}

}  // namespace trireme::tensor
