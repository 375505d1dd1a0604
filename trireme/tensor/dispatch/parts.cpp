// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/parts.h>

#include <trireme/base/error.h>

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <vector>

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

}  // namespace trireme::tensor
