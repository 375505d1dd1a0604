// SPDX-License-Identifier: Apache-2.0
// Labels: partial choices of what to recompute (choose.h), and the rules by which some are dropped.
#pragma once

#include <trireme/graph/parts/choose.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::graph::detail {

/// A set of small numbers, as bits.
class NumberSet {
 public:
  explicit NumberSet(std::size_t limit = 0) : words_((limit + 63) / 64, 0) {}

  bool has(int number) const { return ((word(number) >> bit(number)) & 1U) != 0; }
  /// Returns true if the number was not in the set.
  bool add(int number) {
    const bool is_new = !has(number);
    word(number) |= std::uint64_t{1} << bit(number);
    return is_new;
  }
  void remove(int number) { word(number) &= ~(std::uint64_t{1} << bit(number)); }
  void clear() { words_.assign(words_.size(), 0); }
  void unite(const NumberSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }

  const std::vector<std::uint64_t>& words() const noexcept { return words_; }

 private:
  static unsigned bit(int number) { return static_cast<unsigned>(number) % 64; }
  std::uint64_t& word(int number) { return words_[static_cast<std::size_t>(number) / 64]; }
  const std::uint64_t& word(int number) const {
    return words_[static_cast<std::size_t>(number) / 64];
  }

  std::vector<std::uint64_t> words_;
};

/// A choice for the units so far.
struct Label {
  std::int64_t kept = 0;
  std::int64_t peak = 0;  ///< highest peak of the ranges that have ended
  RecomputeCost cost{};
  NumberSet counted;  ///< slots of tensors that are counted in `kept`
  int link = -1;      ///< the last range

  // For a range that has not ended:
  int begin = -1;
  std::int64_t rebuilt = 0;
  RecomputeCost through{};  ///< cost of running the range to here, even if nothing is kept here
  NumberSet inside;         ///< slots of tensors that the range made
  NumberSet rebuilt_slots;  ///< those of them that are counted in `rebuilt`
};

/// Assigns numbers (slots) to the tensors that are in use between units. Slots are reused.
class Slots {
 public:
  /// How a unit uses a tensor.
  struct Use {
    int slot = 0;
    bool is_made = false;
    bool keeps = false;
  };

  explicit Slots(const Line& line);

  Label first_label() const;
  /// Moves on to a unit. To be called for each unit in order, before its uses are read.
  void come_to(int unit);
  /// Removes tensors that no later unit reads from the labels.
  void leave(int unit, std::vector<Label>& labels) const;

  const std::vector<Use>& uses(int unit) const { return uses_[static_cast<std::size_t>(unit)]; }
  std::int64_t bytes(int slot) const { return bytes_[static_cast<std::size_t>(slot)]; }
  /// Returns the bytes of the slots that are set in one word of a set.
  std::int64_t bytes(std::size_t word, std::uint64_t slots) const;

 private:
  struct Making {
    int slot = 0;
    std::int64_t bytes = 0;
  };
  std::vector<std::vector<Use>> uses_;     // by unit
  std::vector<std::vector<Making>> made_;  // by unit
  std::vector<std::vector<int>> ending_;   // by unit: slots that are free after it
  std::vector<std::int64_t> bytes_;        // by slot, at the current unit
};

/// Drops labels than which another label is no worse, whatever the remaining units do.
class Labels {
 public:
  /// What happens to labels beyond the available room.
  enum class Leaving : std::uint8_t {
    kOut,     ///< one of several neighbours stays, so that the results are real choices
    kMerged,  ///< neighbours are merged into one that is no worse than any of them: a lower bound
  };

  Labels(const Slots& slots, std::size_t room, Leaving leaving)
      : slots_(slots), room_(room), leaving_(leaving) {}

  /// Returns the closed labels that may still become the best.
  std::vector<Label> best_closed(std::vector<Label> labels);
  /// Returns the open labels that may still become the best.
  std::vector<Label> best_open(std::vector<Label> labels);
  /// Returns true if labels were dropped or merged for lack of room.
  bool has_left_out() const noexcept { return has_left_out_; }

 private:
  std::vector<Label> best(std::vector<Label> labels);
  bool is_no_worse(const Label& label, const Label& than) const;
  void make_room(std::vector<Label>& labels);

  const Slots& slots_;
  std::size_t room_;
  Leaving leaving_;
  bool has_left_out_ = false;
};

}  // namespace trireme::graph::detail
