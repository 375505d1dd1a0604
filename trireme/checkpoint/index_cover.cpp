// SPDX-License-Identifier: Apache-2.0
// Whether the pieces of a tensor make it up.
#include <trireme/base/error.h>
#include <trireme/checkpoint/index_document.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

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

// Ranges of one box; a box that nothing cuts further is one range.
struct Counted {
  Box box;
  std::vector<FlatRange> ranges;
};

// What is wrong with the ranges of a box; empty where they follow each other from its first element
// on. Adds up their elements.
std::string misfit(Counted& counted, std::int64_t& sum) {
  std::ranges::sort(counted.ranges, {}, &FlatRange::begin);
  std::int64_t end = 0;
  for (const FlatRange& range : counted.ranges) {
    if (range.order != counted.ranges.front().order) {
      return "the parts count it through differently";
    }
    if (range.begin != end) {
      return join_message("elements ", std::min(end, range.begin), " to ",
                          std::max(end, range.begin), " are ",
                          range.begin > end ? "missing" : "there twice");
    }
    end = range.end;
  }
  sum += end;
  return {};
}

const char* kind_of(const Slice& slice) {
  if (std::holds_alternative<FlatRange>(slice)) return "the range ";
  return std::holds_alternative<Box>(slice) ? "the box " : "the range of a box ";
}

// What is wrong with the pieces of a tensor; empty where they make it up.
std::string misfit(const IndexedTensor& tensor) {
  if (!can_be(tensor)) return "no tensor has this shape";
  const std::int64_t all = elements(tensor.shape);
  Counted whole_tensor;
  std::map<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>, Counted> by_box;
  for (const Piece& piece : tensor.pieces) {
    if (!is_inside(piece.slice, tensor.shape)) {
      return join_message(kind_of(piece.slice), describe(piece.slice), " is not inside it");
    }
    if (const auto* range = std::get_if<FlatRange>(&piece.slice)) {
      whole_tensor.ranges.push_back(*range);
      continue;
    }
    const auto* part = std::get_if<BoxRange>(&piece.slice);
    const Box& box = part == nullptr ? std::get<Box>(piece.slice) : part->box;
    Counted& counted = by_box[{box.begin, box.size}];
    counted.box = box;
    counted.ranges.push_back(part == nullptr ? whole(box.size) : part->range);
  }
  if (!whole_tensor.ranges.empty() && !by_box.empty()) return "some parts are ranges, others boxes";
  std::int64_t sum = 0;
  std::string problem = misfit(whole_tensor, sum);
  for (auto one = by_box.begin(); problem.empty() && one != by_box.end(); ++one) {
    for (auto other = by_box.begin(); other != one; ++other) {
      if (!overlap(one->second.box, other->second.box)) continue;
      return join_message("the boxes ", describe(other->second.box), " and ",
                          describe(one->second.box), " overlap");
    }
    problem = misfit(one->second, sum);
    if (!problem.empty())
      problem = join_message("of the box ", describe(one->second.box), " ", problem);
  }
  if (!problem.empty()) return problem;
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
