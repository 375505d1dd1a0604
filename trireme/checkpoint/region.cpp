// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/region.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme::checkpoint {
namespace {

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

std::vector<std::int64_t> complete(std::vector<std::int64_t> order, std::size_t dimensions) {
  if (order.empty()) {
    order.resize(dimensions);
    std::iota(order.begin(), order.end(), 0);
  }
  return order;
}

Box all_of(at::IntArrayRef shape) {
  return {.begin = std::vector<std::int64_t>(shape.size(), 0), .size = shape.vec()};
}

// Returns the distance between neighbours in each dimension.
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& sizes,
                                     const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> strides(order.size());
  std::int64_t stride = 1;
  for (auto dimension = order.rbegin(); dimension != order.rend(); ++dimension) {
    strides[index(*dimension)] = stride;
    stride *= sizes[index(*dimension)];
  }
  return strides;
}

// Returns the position within the box of the element at `begin`.
std::int64_t place_of(const std::vector<std::int64_t>& begin, const Box& box,
                      const std::vector<std::int64_t>& strides) {
  std::int64_t place = 0;
  for (std::size_t d = 0; d < begin.size(); ++d) place += (begin[d] - box.begin[d]) * strides[d];
  return place;
}

// Returns the common box, or nullopt if there is none.
std::optional<Box> intersection(const Box& one, const Box& other) {
  Box both;
  for (std::size_t d = 0; d < one.begin.size(); ++d) {
    const std::int64_t begin = std::max(one.begin[d], other.begin[d]);
    const std::int64_t end = std::min(one.begin[d] + one.size[d], other.begin[d] + other.size[d]);
    if (begin >= end) return std::nullopt;
    both.begin.push_back(begin);
    both.size.push_back(end - begin);
  }
  return both;
}

// Divides elements [begin, end) of a box into boxes. These are the complete rows of the slowest
// dimension from `level` of the order on, and the incomplete rows before and after them, which are
// divided further.
void cut(const Box& box, const std::vector<std::int64_t>& order, std::size_t level,
         std::int64_t begin, std::int64_t end, std::vector<Box>& boxes) {
  if (begin >= end) return;
  std::int64_t row = 1;
  for (std::size_t at = level + 1; at < order.size(); ++at) row *= box.size[index(order[at])];
  if (level >= order.size()) {
    boxes.push_back(box);
    return;
  }
  const std::size_t dimension = index(order[level]);
  const auto rows = [&](std::int64_t first, std::int64_t count) {
    Box some = box;
    some.begin[dimension] += first;
    some.size[dimension] = count;
    return some;
  };
  std::int64_t first = begin / row;
  const std::int64_t last = end / row;
  const std::int64_t head = begin - first * row;
  const std::int64_t tail = end - last * row;
  if (first == last) {
    cut(rows(first, 1), order, level + 1, head, tail, boxes);
    return;
  }
  if (head > 0) cut(rows(first++, 1), order, level + 1, head, row, boxes);
  if (first < last) boxes.push_back(rows(first, last - first));
  if (tail > 0) cut(rows(last, 1), order, level + 1, 0, tail, boxes);
}

// Returns a view of the elements of `box` in the flat values of a region.
at::Tensor view(const Region& region, const at::Tensor& values, const Box& box) {
  const auto strides = strides_of(region.box.size, region.order);
  const std::int64_t place = place_of(box.begin, region.box, strides) - region.begin;
  return values.as_strided(box.size, strides, values.storage_offset() + place);
}

}  // namespace

Region Region::part(std::int64_t from, std::int64_t to) const {
  return {.box = box, .order = order, .begin = begin + from, .end = begin + to};
}

Region region_of(const Slice& slice, at::IntArrayRef shape) {
  if (const auto* range = std::get_if<FlatRange>(&slice)) {
    return {.box = all_of(shape),
            .order = complete(range->order, shape.size()),
            .begin = range->begin,
            .end = range->end};
  }
  const auto* part = std::get_if<BoxRange>(&slice);
  const Box& box = part == nullptr ? std::get<Box>(slice) : part->box;
  const FlatRange range = part == nullptr ? whole(box.size) : part->range;
  Region region{.box = box,
                .order = complete(range.order, shape.size()),
                .begin = range.begin,
                .end = range.end};
  if (elements(box.size) == 0) return region;
  // Elements are consecutive unless a faster dimension of a dimension with several elements is cut.
  bool is_cut = false;
  bool is_run = true;
  for (auto at = region.order.rbegin(); at != region.order.rend(); ++at) {
    is_run = is_run && (!is_cut || box.size[index(*at)] == 1);
    is_cut = is_cut || box.size[index(*at)] != shape[index(*at)];
  }
  if (!is_run) return region;
  region.box = all_of(shape);
  const std::int64_t before =
      place_of(box.begin, region.box, strides_of(region.box.size, region.order));
  region.begin += before;
  region.end += before;
  return region;
}

bool counts_alike(const Region& one, const Region& other) {
  return one.box == other.box && one.order == other.order;
}

std::vector<Box> boxes_of(const Region& region) {
  std::vector<Box> boxes;
  cut(region.box, region.order, 0, region.begin, region.end, boxes);
  return boxes;
}

Target::Target(Region region, at::Tensor values)
    : region_(std::move(region)), boxes_(boxes_of(region_)), values_(std::move(values)) {}

std::optional<FlatRange> Target::common_part(const Region& source) const {
  const auto strides = strides_of(source.box.size, source.order);
  std::optional<FlatRange> all;
  for (const Box& mine : boxes_of(source)) {
    for (const Box& wanted : boxes_) {
      const std::optional<Box> both = intersection(mine, wanted);
      if (!both) continue;
      const std::int64_t first = place_of(both->begin, source.box, strides) - source.begin;
      std::int64_t last = first;
      for (std::size_t d = 0; d < strides.size(); ++d) last += (both->size[d] - 1) * strides[d];
      if (!all) all = FlatRange{.begin = first, .end = last + 1, .order = {}};
      all->begin = std::min(all->begin, first);
      all->end = std::max(all->end, last + 1);
    }
  }
  return all;
}

void Target::copy_from(const Region& source, const at::Tensor& values) const {
  for (const Box& mine : boxes_of(source)) {
    for (const Box& wanted : boxes_) {
      const std::optional<Box> both = intersection(mine, wanted);
      if (both) view(region_, values_, *both).copy_(view(source, values, *both));
    }
  }
}

}  // namespace trireme::checkpoint
