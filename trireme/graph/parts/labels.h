// SPDX-License-Identifier: Apache-2.0
// Partial choices of what to run again (choose.h), and which of them can be left behind.
#pragma once

#include <trireme/graph/parts/choose.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::graph::detail {

/// Few small numbers.
class NumberSet {
 public:
  explicit NumberSet(std::size_t limit = 0) : words_((limit + 63) / 64, 0) {}

  bool has(int number) const { return ((word(number) >> bit(number)) & 1U) != 0; }
  /// Whether it was not there.
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

/// The choice for the units so far.
struct Label {
  std::int64_t kept = 0;
  std::int64_t peak = 0;  ///< of ranges that have ended
  RecomputeCost cost{};
  NumberSet counted;  ///< slots of tensors that are in `kept`
  int link = -1;      ///< the last range

  // Of a range that has not ended:
  int begin = -1;
  std::int64_t rebuilt = 0;
  RecomputeCost through{};  ///< of running it to here, whether or not anything is kept here
  NumberSet inside;         ///< slots of tensors that it has made
  NumberSet rebuilt_slots;  ///< of these what is in `rebuilt`
};

/// Places for the tensors that are there between two units, used again.
class Slots {
 public:
  struct Use {
    int slot = 0;
    bool is_made = false;
    bool keeps = false;
  };

  explicit Slots(const Line& line);

  Label first_label() const;
  /// Before anything is asked of a unit; one after the other.
  void come_to(int unit);
  /// Takes what nobody reads any more out of the labels.
  void leave(int unit, std::vector<Label>& labels) const;

  const std::vector<Use>& uses(int unit) const { return uses_[static_cast<std::size_t>(unit)]; }
  std::int64_t bytes(int slot) const { return bytes_[static_cast<std::size_t>(slot)]; }
  /// Of the slots in a word of sets.
  std::int64_t bytes(std::size_t word, std::uint64_t slots) const;

 private:
  struct Making {
    int slot = 0;
    std::int64_t bytes = 0;
  };
  std::vector<std::vector<Use>> uses_;     // by unit
  std::vector<std::vector<Making>> made_;  // by unit
  std::vector<std::vector<int>> ending_;   // by unit
  std::vector<std::int64_t> bytes_;        // by slot, now
};

/// Leaves out labels than which another is no worse, whatever comes.
class Labels {
 public:
  /// What becomes of labels beyond the room there is.
  enum class Leaving : std::uint8_t {
    kOut,     ///< of neighbours one stays: what is found can be had
    kMerged,  ///< neighbours become one that is no worse than any of them: a bound
  };

  Labels(const Slots& slots, std::size_t room, Leaving leaving)
      : slots_(slots), room_(room), leaving_(leaving) {}

  std::vector<Label> best_closed(std::vector<Label> labels);
  std::vector<Label> best_open(std::vector<Label> labels);
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
