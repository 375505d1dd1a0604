// SPDX-License-Identifier: Apache-2.0
// Buckets of parameters of which each rank keeps a slice, with only a few gathered at a time: ZeRO
// level 3 (Rajbhandari et al., SC 2020, section 5.3). Example with room for two whole buckets:
//
//     needed by operators   5    4    3    2    1    0    1    2    3    4    5
//     whole buckets         5 4  4 3  3 2  2 1  1 0  0 1  1 2  2 3  3 4  4 5  5
//
// Parameters stay the same tensors; the storage of a bucket has memory only while it is whole. The
// next bucket is predicted from what followed the last two before, and its gather starts early. The
// prediction depends only on the order of calls, so all ranks make the same one.
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

/// The hint of errors that say that ranks do not run the same operators.
inline constexpr auto kSameOperators =
    "run the same operators on such parameters in the same order on all ranks: call a module that "
    "may be skipped on every rank, with no rows where there is nothing to do (x.narrow(0, 0, 0)), "
    "or "
    "keep it whole by plan.zero_level_of = {{\"its name\", 2}}";

/// Gathers buckets when operators need them. Not thread-safe. need(), need_all() and end_step() are
/// collective: all ranks must need the same buckets in the same order.
class GatheredBuckets {
 public:
  /// @param most the number of buckets that are whole at a time, exceeded only if one call needs
  ///     more; 0 for no limit.
  /// @param group the ranks that hold the slices.
  GatheredBuckets(std::int64_t most, comm::Group group);

  /// Adds a bucket.
  /// @param memory [n], flat; must own its storage alone. Its memory is freed.
  /// @param own [n / ranks], this rank's slice of it.
  /// @param names the names of its parameters, for messages.
  /// @return the bucket's number; the first bucket has number 0.
  std::size_t add(const at::Tensor& memory, const at::Tensor& own, std::string names);

  /// Returns true if there are no buckets.
  bool empty() const noexcept { return buckets_.empty(); }

  /// Gathers buckets and keeps them whole until the next call. `numbers` are in the order in which
  /// the operator reads them. Collective and blocking. Ranks first compare what they need, and
  /// throw the same UsageError on every rank if it differs.
  void need(std::span<const std::size_t> numbers);
  /// Gathers all buckets and keeps them whole until drop(). Collective and blocking.
  void need_all();
  /// Says that this rank's step needs no more buckets. Compared over ranks as in need().
  void end_step();

  /// Says that an operator writes into a whole bucket. flush() then updates this rank's slice.
  void expect_write(std::size_t number) { buckets_[number].is_written = has_written_ = true; }
  /// Copies this rank's part of every whole bucket that was written to into its slice.
  void flush();

  /// Frees the whole buckets after slices have changed, and gives back memory beyond the limit.
  void drop();

  /// Gives a bucket memory of its own for good. It is whole if the other ranks take part; otherwise
  /// it has this rank's slice, and zeros elsewhere. No other method may be called for it
  /// afterwards.
  void restore(std::size_t number, bool with_others);

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  using Pair = std::pair<std::size_t, std::size_t>;
  enum Need : std::int64_t { kNothing = -1, kAll = -2 };

  struct Bucket {
    at::Tensor memory;
    at::Tensor own;
    std::string names;
    std::size_t place = kNone;  // index into places_ while it is whole
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
  at::Tensor own_need_;   // [1], a bucket's number or a value of Need
  at::Tensor all_needs_;  // [ranks]
  bool has_written_ = false;
  bool all_are_whole_ = false;              // from need_all() to drop()
  std::uint64_t clock_ = 0;                 // counts calls of need()
  Pair last_two_ = {kNone, kNone};          // the last two buckets needed, the latest second
  std::map<Pair, std::size_t> successors_;  // the bucket that followed two in a row before
};

}  // namespace trireme::detail
