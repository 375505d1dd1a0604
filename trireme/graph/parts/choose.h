// SPDX-License-Identifier: Apache-2.0
// Chooses which parts of a piece to recompute in backward, so that few bytes are kept and little is
// recomputed. Dynamic programming over units, with fronts of choices none of which is better than
// another. It knows neither tensors nor operators.
//
//   units     0     1     2     3     4     5
//           kept [  recomputed  ] kept [ recomputed ]   ranges are recomputed one by one, from the
//                ^ inputs kept         ^ inputs kept     last to the first, as backward proceeds
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace trireme::graph {

/// The cost of recomputing: floating-point operations first and, if these are equal, bytes of
/// results. Lower is better.
struct RecomputeCost {
  double flops = 0;
  double bytes = 0;

  auto operator<=>(const RecomputeCost&) const = default;
  RecomputeCost& operator+=(const RecomputeCost& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};

/// Operators that are kept or recomputed together.
struct Unit {
  RecomputeCost cost{};  ///< cost of running it
  /// Cost of running it up to the last tensor that it keeps. A recomputation that needs nothing
  /// after that tensor ends there.
  RecomputeCost cost_to_last{};
  bool keeps = false;                ///< keeps a tensor, so that a recomputation must reach it
  std::int64_t own_bytes = 0;        ///< bytes kept for its own backward only
  std::int64_t rebuilt_bytes = 0;    ///< bytes that only a recomputation makes
  std::int64_t run_again_bytes = 0;  ///< bytes kept if it is recomputed: copies of buffers
};

/// Memory that one unit makes and other units use.
struct SharedTensor {
  std::int64_t bytes = 0;      ///< size of the memory
  int made_by = 0;             ///< unit that makes it
  std::vector<int> readers{};  ///< later units that read it, ascending
  /// Units whose backward reads it, ascending: some readers, and perhaps the unit that made it.
  std::vector<int> keepers{};
};

/// The units of a piece in the order in which they run, and the memory that they share.
struct Line {
  std::vector<Unit> units{};
  std::vector<SharedTensor> tensors{};
};

/// Units begin to end - 1.
struct UnitRange {
  int begin = 0;  ///< first unit
  int end = 0;    ///< unit after the last one

  bool operator==(const UnitRange&) const = default;
};

/// Which units are recomputed, and what that keeps and costs.
struct Choice {
  std::vector<UnitRange> ranges{};  ///< the ranges that are recomputed, in order
  std::int64_t kept = 0;            ///< bytes kept from forward to backward
  std::int64_t peak = 0;            ///< most bytes at any time in backward; at least `kept`
  RecomputeCost cost{};
};

/// Returns what a choice of ranges keeps and costs. A unit that is not recomputed keeps own_bytes
/// and the tensors of which it is a keeper. A range keeps the tensors of other units that it reads.
/// While it is recomputed, everything that it and the units before it keep exists, and its own
/// units' kept tensors are made.
Choice evaluate(const Line& line, std::vector<UnitRange> ranges);

struct ChoiceLimits {
  std::int64_t kept = std::numeric_limits<std::int64_t>::max();  ///< most bytes kept
  std::int64_t peak = std::numeric_limits<std::int64_t>::max();  ///< highest peak
  /// Only choices of lower cost are searched.
  RecomputeCost below = {.flops = std::numeric_limits<double>::infinity(), .bytes = 0};
};

/// The result of a search.
struct Choices {
  /// The choices within the limits such that no other one keeps and costs less, by cost.
  std::vector<Choice> best{};
  /// A lower bound: for each choice within the limits, one of these neither keeps nor costs more.
  /// Their ranges and peaks are unknown. The same as `best` if the search is exact.
  std::vector<Choice> bounds{};
  bool is_exact = true;  ///< no partial choice was left out for lack of room
};

/// Returns the best choices within the limits. Takes O(units * room * room) time at worst.
/// @param room the number of partial choices that are followed at a time.
Choices best_choices(const Line& line, const ChoiceLimits& limits, std::size_t room = 512);

/// Returns the choices such that no other one keeps less and has a lower peak, whatever they cost,
/// by the bytes that they keep.
std::vector<Choice> smallest_choices(const Line& line);

/// A limit on memory. A choice fits if `times * kept`, plus the peak if `has_peak`, is within
/// `limit`.
struct MemoryConstraint {
  std::int64_t times = 1;  ///< factor of the kept bytes
  bool has_peak = false;   ///< the peak is added
  std::int64_t limit = 0;  ///< most bytes

  /// Returns true if a choice fits.
  bool allows(const Choice& choice) const {
    return times * choice.kept + (has_peak ? choice.peak : 0) <= limit;
  }
};

struct CheapestChoice {
  std::optional<Choice> choice{};  ///< nullopt if no choice fits
  /// No choice that fits costs less. It is the cost of `choice` if the search was exhaustive.
  RecomputeCost at_least{};
};

/// Returns the choice of least cost that fits all constraints.
/// @param room as in best_choices.
CheapestChoice cheapest_choice(const Line& line, const std::vector<MemoryConstraint>& constraints,
                               std::size_t room = 512);

}  // namespace trireme::graph
