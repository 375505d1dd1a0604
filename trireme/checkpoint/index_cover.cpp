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

// Whether elements and bytes can be counted, also where a dimension is empty.
bool can_be(const IndexedTensor& tensor) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  return std::ranges::all_of(tensor.shape, [&](std::int64_t size) {
    return size >= 0 && !__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes);
  });
}

// What is wrong with the pieces of a tensor; empty where they make it up.
std::string misfit(const IndexedTensor& tensor) {
  if (!can_be(tensor)) return "no tensor has this shape";
  const std::int64_t all = elements(tensor.shape);
  std::vector<const FlatRange*> ranges;
  std::vector<const Box*> boxes;
  for (const Piece& piece : tensor.pieces) {
    const auto* range = std::get_if<FlatRange>(&piece.slice);
    if (!is_inside(piece.slice, tensor.shape)) {
      return join_message("the ", range == nullptr ? "box " : "range ", describe(piece.slice),
                          " is not inside it");
    }
    if (range != nullptr) {
      ranges.push_back(range);
    } else {
      boxes.push_back(&std::get<Box>(piece.slice));
    }
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
  std::int64_t sum = end;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(*boxes[i], *boxes[j])) {
        return join_message("the boxes ", describe(*boxes[i]), " and ", describe(*boxes[j]),
                            " overlap");
      }
    }
    sum += elements(boxes[i]->size);
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
