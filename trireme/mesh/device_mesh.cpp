// SPDX-License-Identifier: Apache-2.0
#include <trireme/mesh/device_mesh.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <iomanip>
#include <limits>
#include <numeric>

namespace trireme {
namespace {

using State = DeviceMesh::State;

std::string describe(const std::vector<MeshAxis>& axes) {
  return axes.empty() ? "no axes" : to_string(axes);
}

// Returns `"data"=2, "tensor"=3`. Quoting makes the text unambiguous, whatever characters names
// contain.
std::string describe_exactly(const std::vector<MeshAxis>& axes) {
  TextWriter text;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    text << (axis == 0 ? "" : ", ") << std::quoted(axes[axis].name) << "=" << axes[axis].size;
  }
  return axes.empty() ? "no axes" : text.str();
}

// Checks the axes and returns the product of their sizes.
std::int64_t check_axes(const std::vector<MeshAxis>& axes) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  std::int64_t ranks = 1;
  for (auto axis = axes.begin(); axis != axes.end(); ++axis) {
    if (axis->name.empty()) {
      throw UsageError(
          join_message("axis ", axis - axes.begin(), " of mesh ", describe(axes), " has no name"),
          "name every axis after what is spread along it, such as data or tensor");
    }
    if (std::any_of(axes.begin(), axis,
                    [&](const MeshAxis& other) { return other.name == axis->name; })) {
      throw UsageError(join_message("mesh ", describe(axes), " has two axes '", axis->name, "'"),
                       "give every axis a name of its own");
    }
    if (axis->size < 1) {
      throw UsageError(join_message("axis '", axis->name, "' of mesh ", describe(axes),
                                    " has size ", axis->size, ", expected at least 1"),
                       "give the number of ranks along the axis; 1 where nothing is spread");
    }
    if (ranks > kMost / axis->size) {
      throw UsageError(
          join_message("mesh ", describe(axes), " has places for more than ", kMost, " ranks"),
          "choose smaller sizes");
    }
    ranks *= axis->size;
  }
  return ranks;
}

void check_ranks(const std::vector<int>& ranks, const comm::Group& group) {
  std::vector<bool> seen(static_cast<std::size_t>(group.size()));
  for (const int rank : ranks) {
    if (rank < 0 || rank >= group.size()) {
      throw UsageError(join_message("a mesh over rank ", rank, " of group '", group.name(),
                                    "', which has ranks 0 to ", group.size() - 1),
                       "name only ranks of the group");
    }
    if (seen[static_cast<std::size_t>(rank)]) {
      throw UsageError(join_message("a mesh with rank ", rank, " of group '", group.name(),
                                    "' twice: ", c10::ArrayRef<int>(ranks)),
                       "name every rank once");
    }
    seen[static_cast<std::size_t>(rank)] = true;
  }
}

std::vector<std::int64_t> to_coordinate(const std::vector<MeshAxis>& axes, std::int64_t rank) {
  std::vector<std::int64_t> coordinate(axes.size());
  for (std::size_t axis = axes.size(); axis-- > 0;) {
    coordinate[axis] = rank % axes[axis].size;
    rank /= axes[axis].size;
  }
  return coordinate;
}

std::vector<int> first_ranks(std::int64_t count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Fills in a state, except for the groups of the axes.
c10::intrusive_ptr<State> arrange(std::vector<MeshAxis> axes, std::vector<int> ranks,
                                  comm::Group whole) {
  auto state = c10::make_intrusive<State>();
  state->axes = std::move(axes);
  state->ranks = std::move(ranks);
  state->rank = whole.rank();
  state->is_connected = true;
  state->whole = std::move(whole);
  if (state->rank >= 0) state->coordinate = to_coordinate(state->axes, state->rank);
  return state;
}

// Returns the position of a coordinate among all that differ only along `axes`, the last of which
// varies fastest.
std::size_t place_along(const State& mesh, const std::vector<std::int64_t>& coordinate,
                        const std::vector<int>& axes) {
  std::int64_t place = 0;
  for (const int axis : axes) {
    const auto at = static_cast<std::size_t>(axis);
    place = place * mesh.axes[at].size + coordinate[at];
  }
  return static_cast<std::size_t>(place);
}

// Partitions the ranks of the mesh into lists in which ranks differ only along `axes`. The lists
// and their order are equal on every rank.
std::vector<std::vector<int>> lines_along(const State& mesh, const std::vector<int>& axes) {
  std::vector<int> others;
  std::size_t length = 1;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    if (std::ranges::find(axes, axis) == axes.end()) {
      others.push_back(axis);
    } else {
      length *= static_cast<std::size_t>(mesh.axes[static_cast<std::size_t>(axis)].size);
    }
  }
  std::vector<std::vector<int>> lines(mesh.ranks.size() / length, std::vector<int>(length));
  for (int rank = 0; rank < static_cast<int>(mesh.ranks.size()); ++rank) {
    const std::vector<std::int64_t> coordinate = to_coordinate(mesh.axes, rank);
    lines[place_along(mesh, coordinate, others)][place_along(mesh, coordinate, axes)] = rank;
  }
  return lines;
}

const std::vector<int>& line_of(int rank, const std::vector<std::vector<int>>& lines) {
  return *std::ranges::find_if(
      lines, [&](const auto& line) { return std::ranges::find(line, rank) != line.end(); });
}

// Returns the group of the list that contains this rank. Collective over the mesh if a new group is
// necessary.
comm::Group connect_line(const State& mesh, const std::vector<std::vector<int>>& lines) {
  if (lines.size() == 1 && std::ranges::is_sorted(lines.front())) return mesh.whole;
  if (lines.front().size() == 1) return comm::Group::self();
  comm::Group own;
  for (const std::vector<int>& line : lines) {
    comm::Group group = mesh.whole.subgroup(line);
    if (group.rank() >= 0) own = std::move(group);
  }
  return own;
}

// The meshes of this process that are in use. If a program arranges the same ranks in the same way
// again, for example for a second module, it gets the same mesh, so that tensors of both work
// together.
class KnownMeshes {
 public:
  struct Found {
    c10::intrusive_ptr<State> state;  // null if there is none
    std::int64_t serial = 0;          // the number by which all ranks know the mesh
    std::int64_t next_serial = 1;     // a number that this process has not used
  };

  static KnownMeshes& of_process() {
    static KnownMeshes known;
    return known;
  }

  void add(const c10::intrusive_ptr<State>& state, std::int64_t serial) {
    const std::lock_guard lock(mutex_);
    std::erase_if(meshes_, [](const Known& known) { return known.state.expired(); });
    meshes_.push_back({c10::weak_intrusive_ptr<State>(state), serial});
    next_serial_ = std::max(next_serial_, serial + 1);
  }

  // Returns the latest mesh made of these arguments.
  Found find(const comm::Group& group, const std::vector<int>& ranks,
             const std::vector<MeshAxis>& axes) {
    const std::lock_guard lock(mutex_);
    for (auto known = meshes_.rbegin(); known != meshes_.rend(); ++known) {
      auto state = known->state.lock();
      // A group of one rank has no backend, so sizes are compared as well.
      const bool is_same = state && state->made_of.size() == group.size() &&
                           state->made_of.backend() == group.backend() && state->ranks == ranks &&
                           state->axes == axes;
      if (is_same) return {std::move(state), known->serial, next_serial_};
    }
    return {.state = {}, .serial = 0, .next_serial = next_serial_};
  }

 private:
  struct Known {
    c10::weak_intrusive_ptr<State> state;
    std::int64_t serial;
  };
  std::mutex mutex_;
  std::vector<Known> meshes_;
  std::int64_t next_serial_ = 1;
};

// The result of comparing a mesh over the ranks of a group.
struct Agreed {
  bool is_same_mesh = false;     // all ranks found the same mesh
  std::int64_t next_serial = 1;  // a number that no rank has used
};

// Some ranks may have released a mesh that others still use, and may have another one by now. It is
// the same mesh only if all ranks know it by the same serial number. Collective.
Agreed agree(const KnownMeshes::Found& own, const comm::Group& group) {
  Agreed agreed{.is_same_mesh = own.serial != 0};
  for (const std::string& text :
       comm::all_gather_text(join_message(own.serial, " ", own.next_serial), group)) {
    std::int64_t serial = 0;
    std::int64_t next_serial = 0;
    TextReader(text) >> serial >> next_serial;
    agreed.is_same_mesh = agreed.is_same_mesh && serial == own.serial;
    agreed.next_serial = std::max(agreed.next_serial, next_serial);
  }
  return agreed;
}

// Creates or finds a mesh. Collective over all of `group`, after its ranks have agreed on the
// arguments.
c10::intrusive_ptr<State> connect_mesh(const comm::Group& group, std::vector<int> ranks,
                                       std::vector<MeshAxis> axes) {
  const std::int64_t places = check_axes(axes);
  check_ranks(ranks, group);
  if (places != static_cast<std::int64_t>(ranks.size())) {
    throw UsageError(
        join_message("mesh ", describe(axes), " has places for ", places, " ranks and is made of ",
                     ranks.size(), " of group '", group.name(), "'"),
        "choose sizes whose product is the number of ranks, or list the ranks that "
        "take part");
  }
  const KnownMeshes::Found known = KnownMeshes::of_process().find(group, ranks, axes);
  const Agreed agreed = agree(known, group);
  if (agreed.is_same_mesh) return known.state;
  comm::Group whole = ranks == first_ranks(group.size()) ? group : group.subgroup(ranks);
  auto state = arrange(std::move(axes), std::move(ranks), std::move(whole));
  state->made_of = group;
  const auto num_axes = static_cast<int>(state->axes.size());
  for (int axis = 0; state->rank >= 0 && axis < num_axes; ++axis) {
    state->groups.push_back(connect_line(*state, lines_along(*state, {axis})));
  }
  KnownMeshes::of_process().add(state, agreed.next_serial);
  return state;
}

State& checked(const c10::intrusive_ptr<State>& state) {
  if (state) return *state;
  throw UsageError("this mesh has no ranks: it is a default DeviceMesh",
                   "make one of a group: DeviceMesh(group, {{\"data\", 2}, {\"tensor\", 2}})");
}

std::size_t checked_axis(const State& mesh, int axis) {
  if (axis >= 0 && axis < static_cast<int>(mesh.axes.size())) {
    return static_cast<std::size_t>(axis);
  }
  throw UsageError(join_message("axis ", axis, " of mesh ", describe(mesh.axes), ", which has ",
                                mesh.axes.size()),
                   "count axes from 0, or find one by its name: mesh.axis(\"data\")");
}

[[noreturn]] void refuse_outside(const State& mesh, const char* what) {
  if (!mesh.is_connected) {
    throw UsageError(
        join_message(what, " of mesh ", describe(mesh.axes), ", which no ranks stand behind"),
        "make the mesh of a group to run on it");
  }
  throw UsageError(join_message(what, " of mesh ", describe(mesh.axes), " over ranks ",
                                c10::ArrayRef<int>(mesh.ranks),
                                ", to which this rank does not "
                                "belong"),
                   "ask contains_this_rank() first");
}

}  // namespace

DeviceMesh::DeviceMesh(const comm::Group& group, std::vector<MeshAxis> axes) {
  comm::check_same_text("axes of a mesh", describe_exactly(axes), group);
  state_ = connect_mesh(group, first_ranks(group.size()), std::move(axes));
}

DeviceMesh::DeviceMesh(const comm::Group& group, const std::vector<int>& ranks,
                       std::vector<MeshAxis> axes) {
  comm::check_same_text(
      "axes and ranks of a mesh",
      join_message(describe_exactly(axes), " over ranks ", c10::ArrayRef<int>(ranks)), group);
  state_ = connect_mesh(group, ranks, std::move(axes));
}

DeviceMesh DeviceMesh::unconnected(std::vector<MeshAxis> axes) {
  auto state = c10::make_intrusive<State>();
  state->ranks = first_ranks(check_axes(axes));
  state->axes = std::move(axes);
  return DeviceMesh(std::move(state));
}

const std::string& DeviceMesh::axis_name(int axis) const {
  const State& mesh = checked(state_);
  return mesh.axes[checked_axis(mesh, axis)].name;
}

std::int64_t DeviceMesh::size(int axis) const {
  const State& mesh = checked(state_);
  return mesh.axes[checked_axis(mesh, axis)].size;
}

int DeviceMesh::axis(std::string_view name) const {
  const std::vector<MeshAxis>& axes = checked(state_).axes;
  const auto found = std::ranges::find(axes, name, &MeshAxis::name);
  if (found != axes.end()) return static_cast<int>(found - axes.begin());
  throw UsageError(join_message("mesh ", describe(axes), " has no axis '", name, "'"),
                   "name one of the axes of the mesh, or add this one where the mesh is made");
}

c10::ArrayRef<std::int64_t> DeviceMesh::coordinate() const {
  const State& mesh = checked(state_);
  if (mesh.rank < 0) refuse_outside(mesh, "the coordinate");
  return mesh.coordinate;
}

std::int64_t DeviceMesh::coordinate(int axis) const {
  return coordinate()[checked_axis(*state_, axis)];
}

int DeviceMesh::rank_at(c10::ArrayRef<std::int64_t> coordinate) const {
  const State& mesh = checked(state_);
  bool is_inside = coordinate.size() == mesh.axes.size();
  std::int64_t rank = 0;
  for (std::size_t axis = 0; is_inside && axis < coordinate.size(); ++axis) {
    const std::int64_t axis_size = mesh.axes[axis].size;
    is_inside = coordinate[axis] >= 0 && coordinate[axis] < axis_size;
    rank = rank * axis_size + coordinate[axis];
  }
  if (is_inside) return static_cast<int>(rank);
  throw UsageError(join_message("coordinate ", coordinate, " is not in mesh ", describe(mesh.axes)),
                   "give one number an axis, from 0 to its size less 1");
}

std::vector<std::int64_t> DeviceMesh::coordinate_of(int rank) const {
  const State& mesh = checked(state_);
  if (rank >= 0 && rank < size()) return to_coordinate(mesh.axes, rank);
  throw UsageError(join_message("rank ", rank, " is not in mesh ", describe(mesh.axes)),
                   join_message("give a rank from 0 to ", size() - 1));
}

c10::ArrayRef<int> DeviceMesh::ranks() const { return checked(state_).ranks; }

const comm::Group& DeviceMesh::group() const {
  const State& mesh = checked(state_);
  if (!mesh.is_connected) refuse_outside(mesh, "the group");
  return mesh.whole;
}

const comm::Group& DeviceMesh::group(int axis) const {
  const State& mesh = checked(state_);
  const std::size_t at = checked_axis(mesh, axis);
  if (mesh.rank < 0) refuse_outside(mesh, "the group of an axis");
  return mesh.groups[at];
}

DeviceMesh DeviceMesh::submesh(const std::vector<std::string>& names) const {
  State& mesh = checked(state_);
  std::vector<int> axes;
  for (const std::string& name : names) {
    const int found = axis(name);
    if (std::ranges::find(axes, found) != axes.end()) {
      throw UsageError(
          join_message("a sub-mesh of mesh ", to_string(), " with axis '", name, "' twice"),
          "name every axis once");
    }
    axes.push_back(found);
  }
  if (axes.empty()) {
    throw UsageError(join_message("a sub-mesh of mesh ", to_string(), " without axes"),
                     "name at least one axis");
  }
  if (mesh.rank < 0) refuse_outside(mesh, "a sub-mesh");
  if (axes == first_ranks(num_axes())) return *this;

  // The lock is held while ranks connect. Otherwise two threads of a rank that ask at the same time
  // could be matched with different threads of other ranks.
  const std::lock_guard lock(mesh.mutex);
  for (const auto& [of_axes, made] : mesh.submeshes) {
    if (of_axes == axes) return DeviceMesh(made);
  }
  DeviceMesh made = connect_submesh(axes);
  mesh.submeshes.emplace_back(std::move(axes), made.state_);
  return made;
}

DeviceMesh DeviceMesh::connect_submesh(const std::vector<int>& axes) const {
  const State& mesh = *state_;
  std::vector<MeshAxis> chosen;
  std::vector<comm::Group> groups;
  for (const int axis : axes) {
    chosen.push_back(mesh.axes[static_cast<std::size_t>(axis)]);
    groups.push_back(mesh.groups[static_cast<std::size_t>(axis)]);
  }
  if (axes.size() > 1)
    comm::check_same_text("axes of a sub-mesh", describe_exactly(chosen), mesh.whole);
  const std::vector<std::vector<int>> lines = lines_along(mesh, axes);
  std::vector<int> ranks;
  for (const int rank : line_of(mesh.rank, lines)) {
    ranks.push_back(mesh.ranks[static_cast<std::size_t>(rank)]);
  }
  auto state = arrange(std::move(chosen), std::move(ranks),
                       axes.size() == 1 ? groups.front() : connect_line(mesh, lines));
  state->groups = std::move(groups);
  return DeviceMesh(std::move(state));
}

std::string DeviceMesh::to_string() const { return defined() ? describe(state_->axes) : "no mesh"; }

DeviceMesh::Attachment& DeviceMesh::attachment(std::unique_ptr<Attachment> (*make)()) const {
  State& mesh = checked(state_);
  if (Attachment* made = mesh.attachment.load(std::memory_order_acquire)) return *made;
  const std::lock_guard lock(mesh.mutex);
  if (!mesh.attachment_owner) {
    mesh.attachment_owner = make();
    mesh.attachment.store(mesh.attachment_owner.get(), std::memory_order_release);
  }
  return *mesh.attachment_owner;
}

}  // namespace trireme
