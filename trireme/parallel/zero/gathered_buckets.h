// SPDX-License-Identifier: Apache-2.0
// Buckets of parameters of which each rank keeps its slice, and only a few are whole at a time:
// ZeRO level 3 (Rajbhandari et al., SC 2020, section 5.3).
//
//     needed by operators   5    4    3    2    1    0    1    2    3    4    5
//     whole, in 2 places    5 4  4 3  3 2  2 1  1 0  0 1  1 2  2 3  3 4  4 5  5
//
// The tensors of a bucket stay what they are; its storage has memory while it is whole and none
// else. Whoever needs a bucket next is predicted from what followed the last two before, so that
// its gather is under way when it is needed. That depends on the order of needs alone, and so comes
// out alike on all ranks.
#pragma once

#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::detail {

/// The hint where ranks do not run the same operators.
inline constexpr auto kSameOperators =
    "run the same operators on such parameters in the same order on all ranks: call a module that "
    "may be skipped on every rank, with no rows where there is nothing to do (x.narrow(0, 0, 0)), "
    "or "
    "keep it whole by plan.zero_level_of = {{\"its name\", 2}}";

/// Thread-safety: none. `need` and what it leads to are collective: all ranks must need the same
/// buckets in the same order.
class GatheredBuckets {
 public:
  /// @param most buckets that are whole at a time, but where one call needs more; 0: no bound.
  GatheredBuckets(std::int64_t most, comm::Group group);

  /// @param memory [n], flat; its storage, which is its alone, loses its memory.
  /// @param own [n / ranks], this rank's slice of it.
  /// @param names of the parameters in it, for messages.
  /// @return its number; numbers count from 0.
  std::size_t add(const at::Tensor& memory, const at::Tensor& own, std::string names);

  bool empty() const noexcept { return buckets_.empty(); }

  /// Makes buckets whole, and keeps them so until the next call. Blocks. The first of `numbers`
  /// that an operator reads comes first. Ranks compare what they need before they gather it: throws
  /// the same UsageError on all where they do not need the same.
  void need(std::span<const std::size_t> numbers);
  void need_all();
  /// Says that this rank's step needs no more, which is compared like a need.
  void end_step();

  /// Says that somebody writes into a bucket that is whole: this rank's slice follows it.
  void expect_write(std::size_t number) { buckets_[number].is_written = has_written_ = true; }
  /// Brings this rank's slices up to what was written into whole buckets.
  void flush();

  /// Nothing is whole any more: slices have changed. Memory beyond the bound is given back.
  void drop();

  /// Gives a bucket memory of its own for good: whole, where the others take part, else with this
  /// rank's slice and zeros. No other method may be called for it afterwards.
  void restore(std::size_t number, bool with_others);

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  using Pair = std::pair<std::size_t, std::size_t>;
  enum Need : std::int64_t { kNothing = -1, kAll = -2 };

  struct Bucket {
    at::Tensor memory;
    at::Tensor own;
    std::string names;
    std::size_t place = kNone;  // where it lies while it is whole
    comm::Work gather;
    bool is_gathering = false;
    bool is_written = false;
    std::uint64_t last_need = 0;
    std::int64_t bytes() const {
      return memory.numel() * static_cast<std::int64_t>(memory.element_size());
    }
  };
  struct Place {
    at::Tensor memory;  // [bytes]
    std::size_t bucket = kNone;
  };

  void compare_need(std::int64_t need);
  std::string describe(std::int64_t need) const;
  bool follow(std::size_t number);
  void gather_ahead();
  bool start_gather(std::size_t number, bool may_grow);
  std::size_t find_place(const Bucket& bucket, bool may_grow);
  void finish_gather(Bucket& bucket);
  void leave_place(std::size_t place);
  at::Tensor slice_in(const Bucket& bucket) const;

  std::int64_t most_;
  comm::Group group_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  at::Tensor own_need_;   // [1], a number of a bucket, or one of Need
  at::Tensor all_needs_;  // [ranks]
  bool has_written_ = false;
  bool all_are_whole_ = false;              // since need_all
  std::uint64_t clock_ = 0;                 // calls of need
  Pair last_two_ = {kNone, kNone};          // needed, the latest second
  std::map<Pair, std::size_t> successors_;  // of two in a row
};

}  // namespace trireme::detail
