// SPDX-License-Identifier: Apache-2.0
// Whether the pieces of a tensor make it up.
#include <trireme/base/error.h>
#include <trireme/checkpoint/index_document.h>

#include <algorithm>

namespace trireme::checkpoint {
namespace {

// Overlaps of boxes, and of what should follow each other.
bool overlap(const Box& one, const Box& other) {
  for (std::size_t d = 0; d < one.begin.size(); ++d) {
    if (one.begin[d] >= other.begin[d] + other.size[d] ||
        other.begin[d] >= one.begin[d] + one.size[d]) {
      return false;
    }
  }
  return true;
}

bool is_inside(const Box& box, const std::vector<std::int64_t>& shape) {
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.begin[d] < 0 || box.size[d] < 0 || box.size[d] > shape[d] ||
        box.begin[d] > shape[d] - box.size[d]) {
      return false;
    }
  }
  return true;
}

bool is_order(const std::vector<std::int64_t>& order, std::size_t dimensions) {
  if (order.empty()) return true;
  std::vector<std::int64_t> sorted = order;
  std::ranges::sort(sorted);
  for (std::size_t d = 0; d < sorted.size(); ++d) {
    if (sorted[d] != static_cast<std::int64_t>(d)) return false;
  }
  return order.size() == dimensions;
}

// What is wrong with the pieces of a tensor; empty where they make it up.
std::string misfit(const IndexedTensor& tensor) {
  const std::int64_t all = elements(tensor.shape);
  std::vector<const FlatRange*> ranges;
  std::vector<const Box*> boxes;
  std::int64_t sum = 0;
  for (const Piece& piece : tensor.pieces) {
    if (const auto* range = std::get_if<FlatRange>(&piece.slice)) {
      if (range->begin < 0 || range->end < range->begin || range->end > all ||
          !is_order(range->order, tensor.shape.size())) {
        return join_message("the range ", describe(piece.slice), " is not inside it");
      }
      ranges.push_back(range);
    } else {
      const Box& box = std::get<Box>(piece.slice);
      if (!is_inside(box, tensor.shape)) {
        return join_message("the box ", describe(piece.slice), " is not inside it");
      }
      boxes.push_back(&box);
    }
    sum += slice_elements(piece.slice);
  }
  if (!ranges.empty() && !boxes.empty()) return "some parts are ranges, others boxes";
  std::ranges::sort(ranges, {}, &FlatRange::begin);
  std::int64_t end = 0;
  for (const FlatRange* range : ranges) {
    if (range->order != ranges.front()->order) return "the parts count it through differently";
    if (range->begin != end) {
      return join_message("elements ", std::min(end, range->begin), " to ",
                          std::max(end, range->begin), " are ",
                          range->begin > end ? "missing" : "there twice");
    }
    end = range->end;
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(*boxes[i], *boxes[j])) {
        return join_message("the boxes ", describe(*boxes[i]), " and ", describe(*boxes[j]),
                            " overlap");
      }
    }
  }
  if (sum != all) return join_message(all - sum, " of ", all, " elements are missing");
  return {};
}

}  // namespace

void check_cover(const std::string& name, const IndexedTensor& tensor, const std::string& where) {
  const std::string problem = misfit(tensor);
  if (problem.empty()) return;
  throw CheckpointError(join_message(where, " has not all of tensor '", name, "' ",
                                     at::IntArrayRef(tensor.shape), ": ", problem),
                        "every element has to belong to exactly one of the parts that ranks save");
}

}  // namespace trireme::checkpoint
