// SPDX-License-Identifier: Apache-2.0
// Checks that the pieces of a tensor cover it exactly once.
#include <trireme/base/error.h>
#include <trireme/checkpoint/index_document.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

// Returns true if two boxes have common elements.
bool overlap(const Box& one, const Box& other) {
  for (std::size_t d = 0; d < one.begin.size(); ++d) {
    if (one.begin[d] >= other.begin[d] + other.size[d] ||
        other.begin[d] >= one.begin[d] + one.size[d]) {
      return false;
    }
  }
  return true;
}

// Returns a message about the first two overlapping boxes, or an empty string. Only the first
// thousands are compared, because comparing all pairs would take too long for a message.
std::string overlapping(const std::vector<Box>& boxes) {
  constexpr std::size_t kMost = 2000;
  const std::size_t count = std::min(boxes.size(), kMost);
  for (std::size_t one = 0; one < count; ++one) {
    for (std::size_t other = 0; other < one; ++other) {
      if (!overlap(boxes[one], boxes[other])) continue;
      return join_message("the boxes ", describe(boxes[other]), " and ", describe(boxes[one]),
                          " overlap");
    }
  }
  return {};
}

// Random weights of boxes modulo a prime.
class Weights {
 public:
  // Returns the product over all dimensions of the weight of [begin[d], begin[d] + size[d]).
  std::uint64_t of(const Box& box) const {
    std::uint64_t product = 1;
    for (std::size_t d = 0; d < box.begin.size(); ++d) {
      const std::uint64_t end = up_to(d, box.begin[d] + box.size[d]);
      const std::uint64_t weight = (end + kPrime - up_to(d, box.begin[d])) % kPrime;
      product = static_cast<std::uint64_t>(Wide{product} * weight % kPrime);
    }
    return product;
  }
  static std::uint64_t sum(std::uint64_t one, std::uint64_t other) {
    return (one + other) % kPrime;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61U) - 1;

  // Returns the weight of the elements before a position of a dimension. The mixing function is
  // that of splitmix64.
  std::uint64_t up_to(std::size_t dimension, std::int64_t place) const {
    std::uint64_t mixed = secret_;
    for (const std::uint64_t part : {std::uint64_t{dimension}, static_cast<std::uint64_t>(place)}) {
      mixed += part + 0x9E3779B97F4A7C15U;
      mixed = (mixed ^ mixed >> 30U) * 0xBF58476D1CE4E5B9U;
      mixed = (mixed ^ mixed >> 27U) * 0x94D049BB133111EBU;
      mixed ^= mixed >> 31U;
    }
    return mixed % kPrime;
  }

  std::uint64_t secret_ = std::uint64_t{std::random_device()()} << 32U | std::random_device()();
};

// Returns true if boxes within a tensor, with as many elements as it in total, cover each element
// once. Every index of a dimension has a random weight, and every element has the product of the
// weights of its indices. Boxes that cover the tensor have the same total weight as the tensor.
// Other boxes have it with a probability of 2^-54 (Schwartz-Zippel lemma). So no pairs must be
// compared.
bool make_up(const std::vector<Box>& boxes, at::IntArrayRef shape) {
  const Weights weights;
  std::uint64_t sum = 0;
  for (const Box& box : boxes) sum = Weights::sum(sum, weights.of(box));
  return sum ==
         weights.of({.begin = std::vector<std::int64_t>(shape.size(), 0), .size = shape.vec()});
}

// Returns true if the numbers of elements and bytes do not overflow, even with empty dimensions.
bool can_be(const IndexedTensor& tensor) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  return std::ranges::all_of(tensor.shape, [&](std::int64_t size) {
    return size >= 0 && !__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes);
  });
}

// The ranges of one box. A box that is not divided further is one range.
struct Counted {
  Box box;
  std::vector<FlatRange> ranges;
};

// Returns a message unless the ranges of a box are consecutive from its first element on. Adds
// their elements to `sum`.
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
  // Saturates: a sum beyond the maximum is too large in any case.
  if (__builtin_add_overflow(sum, end, &sum)) sum = std::numeric_limits<std::int64_t>::max();
  return {};
}

const char* kind_of(const Slice& slice) {
  if (std::holds_alternative<FlatRange>(slice)) return "the range ";
  return std::holds_alternative<Box>(slice) ? "the box " : "the range of a box ";
}

// Returns a message unless the pieces cover the tensor exactly once.
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
  std::vector<Box> boxes;
  for (auto one = by_box.begin(); problem.empty() && one != by_box.end() && sum <= all; ++one) {
    problem = misfit(one->second, sum);
    if (!problem.empty()) {
      problem = join_message("of the box ", describe(one->second.box), " ", problem);
    }
    boxes.push_back(one->second.box);
  }
  if (!problem.empty()) return problem;
  if (sum == all && (boxes.empty() || make_up(boxes, tensor.shape))) return {};
  problem = overlapping(boxes);
  if (!problem.empty()) return problem;
  if (sum < all) return join_message(all - sum, " of ", all, " elements are missing");
  return "some of its boxes overlap";
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
