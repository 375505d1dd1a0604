// SPDX-License-Identifier: Apache-2.0
// Which parts of a piece to run again, so that it keeps few bytes and little runs again: the best
// choices, by dynamic programming over fronts of those that none is better than. Knows neither
// tensors nor operators.
//
//   units     0     1     2     3     4     5
//           kept [  run again  ] kept [ run again ]     ranges are run again one by one, from the
//                ^ inputs kept        ^ inputs kept     last to the first, as backward goes
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace trireme::graph {

/// The less the better: floating-point operations, and where these are equal bytes of results.
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

/// What runs as one.
struct Unit {
  RecomputeCost cost{};  ///< of running it
  /// Of running it up to the last tensor that it keeps; a second run that needs nothing after it
  /// ends there.
  RecomputeCost cost_to_last{};
  bool keeps = false;                ///< anything, so that a second run has to come here
  std::int64_t own_bytes = 0;        ///< kept for its backward alone
  std::int64_t rebuilt_bytes = 0;    ///< what a second run makes beside what was kept
  std::int64_t run_again_bytes = 0;  ///< kept where it is run again: copies of buffers
};

/// Memory that one unit makes and others use.
struct SharedTensor {
  std::int64_t bytes = 0;
  int made_by = 0;
  std::vector<int> readers{};  ///< units after it that read it, ascending
  /// Units whose backward reads it, ascending: readers, and the one that made it.
  std::vector<int> keepers{};
};

struct Line {
  std::vector<Unit> units{};
  std::vector<SharedTensor> tensors{};
};

/// Units begin to end - 1.
struct UnitRange {
  int begin = 0;
  int end = 0;

  bool operator==(const UnitRange&) const = default;
};

struct Choice {
  std::vector<UnitRange> ranges{};  ///< that are run again, in order
  std::int64_t kept = 0;
  std::int64_t peak = 0;  ///< at least `kept`
  RecomputeCost cost{};
};

/// What a choice of ranges keeps and costs. A unit that is not run again keeps own_bytes and what
/// it is a keeper of. A range keeps what its units read of others. When it is run again, what it
/// and all before it keep is there, and what its own units keep is made.
Choice evaluate(const Line& line, std::vector<UnitRange> ranges);

/// What a choice may keep.
struct ChoiceLimits {
  std::int64_t kept = std::numeric_limits<std::int64_t>::max();
  std::int64_t peak = std::numeric_limits<std::int64_t>::max();
  /// Only choices that cost less are looked for.
  RecomputeCost below = {.flops = std::numeric_limits<double>::infinity(), .bytes = 0};
};

struct Choices {
  /// Those within the limits than which no other keeps and costs less, by cost.
  std::vector<Choice> best{};
  /// For each choice within the limits one of these neither keeps nor costs more; their ranges and
  /// peaks are not known. The same as `best` where nothing had to be left out for want of room.
  std::vector<Choice> bounds{};
  bool is_exact = true;  ///< nothing was left out
};

/// @param room how many partial choices are followed at a time. O(units * room * room) at worst.
Choices best_choices(const Line& line, const ChoiceLimits& limits, std::size_t room = 512);

/// The choices than which no other keeps less and has a lower peak, whatever they cost; by what
/// they keep, ascending.
std::vector<Choice> smallest_choices(const Line& line);

/// A choice fits where `times * kept`, and the peak besides where it counts, is at most the limit.
struct MemoryConstraint {
  std::int64_t times = 1;
  bool has_peak = false;
  std::int64_t limit = 0;

  bool allows(const Choice& choice) const {
    return times * choice.kept + (has_peak ? choice.peak : 0) <= limit;
  }
};

struct CheapestChoice {
  std::optional<Choice> choice{};  ///< none where none fits
  /// No choice that fits costs less; the cost of `choice` unless too many had to be looked at.
  RecomputeCost at_least{};
};

/// The choice that costs least of those that fit all constraints.
CheapestChoice cheapest_choice(const Line& line, const std::vector<MemoryConstraint>& constraints,
                               std::size_t room = 512);

}  // namespace trireme::graph
