// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/tensor_part.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace trireme::checkpoint {
namespace {

// Returns true if `order` is a permutation of the dimensions, or empty for row-major order.
bool is_order(std::vector<std::int64_t> order, std::size_t dimensions) {
  if (order.empty()) return true;
  std::ranges::sort(order);
  for (std::size_t d = 0; d < order.size(); ++d) {
    if (order[d] != static_cast<std::int64_t>(d)) return false;
  }
  return order.size() == dimensions;
}

}  // namespace

std::int64_t elements(at::IntArrayRef shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t slice_elements(const Slice& slice) {
  if (const auto* range = std::get_if<FlatRange>(&slice)) return range->end - range->begin;
  if (const auto* part = std::get_if<BoxRange>(&slice)) return part->range.end - part->range.begin;
  return elements(std::get<Box>(slice).size);
}

bool is_inside(const Slice& slice, at::IntArrayRef shape) {
  if (const auto* range = std::get_if<FlatRange>(&slice)) {
    return range->begin >= 0 && range->begin <= range->end && range->end <= elements(shape) &&
           is_order(range->order, shape.size());
  }
  if (const auto* part = std::get_if<BoxRange>(&slice)) {
    return is_inside(part->box, shape) && is_inside(part->range, part->box.size);
  }
  const Box& box = std::get<Box>(slice);
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.begin[d] < 0 || box.size[d] < 0 || box.size[d] > shape[d] ||
        box.begin[d] > shape[d] - box.size[d]) {
      return false;
    }
  }
  return true;
}

FlatRange whole(at::IntArrayRef shape) { return {.begin = 0, .end = elements(shape), .order = {}}; }

bool is_whole(const Slice& slice, at::IntArrayRef shape) {
  const auto* range = std::get_if<FlatRange>(&slice);
  return range != nullptr && *range == whole(shape);
}

std::vector<std::int64_t> memory_order(at::IntArrayRef sizes, at::IntArrayRef strides) {
  // Dimensions of one element may be anywhere. They come first, so that equal orders have equal
  // lists.
  std::vector<std::int64_t> order;
  std::vector<std::int64_t> long_ones;
  for (std::size_t dimension = 0; dimension < sizes.size(); ++dimension) {
    (sizes[dimension] == 1 ? order : long_ones).push_back(static_cast<std::int64_t>(dimension));
  }
  std::ranges::stable_sort(long_ones, std::greater<>(), [&](std::int64_t dimension) {
    return strides[static_cast<std::size_t>(dimension)];
  });
  if (std::ranges::is_sorted(long_ones)) return {};
  order.insert(order.end(), long_ones.begin(), long_ones.end());
  return order;
}

std::string describe(const Slice& slice) {
  if (const auto* range = std::get_if<FlatRange>(&slice)) {
    return join_message("[", range->begin, ", ", range->end, ")");
  }
  if (const auto* part = std::get_if<BoxRange>(&slice)) {
    return describe(part->box) + describe(part->range);
  }
  const Box& box = std::get<Box>(slice);
  std::string text = "[";
  const std::size_t dimensions = std::min(box.begin.size(), box.size.size());
  for (std::size_t dimension = 0; dimension < dimensions; ++dimension) {
    std::int64_t end = 0;
    if (__builtin_add_overflow(box.begin[dimension], box.size[dimension], &end)) {
      end = std::numeric_limits<std::int64_t>::max();
    }
    text += join_message(dimension == 0 ? "" : ", ", box.begin[dimension], ":", end);
  }
  return text + "]";
}

TensorPart replicated(std::string section, std::string name, const at::Tensor& tensor) {
  return {.section = std::move(section),
          .name = std::move(name),
          .shape = tensor.sizes().vec(),
          .slice = whole(tensor.sizes()),
          .local = tensor.detach(),
          .is_replicated = true};
}

}  // namespace trireme::checkpoint
