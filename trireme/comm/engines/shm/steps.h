// SPDX-License-Identifier: Apache-2.0
// Steps: the numbered steps that collectives consist of. In a step a rank may write one slot of
// shared memory, and reads slots of other ranks. All ranks count the steps alike. So the number of
// a step says which slot holds it, and when that slot may be written again.
//
//     rank 0:  write 0 | write 1 | read 0 | write 2 | read 1 | …     (slots: step modulo num_slots)
//     rank 1:  write 0 | write 1 | read 0 | write 2 | read 1 | …
//
// Writing is one step ahead of reading, so that a rank which is late for one step delays nobody
// before the next.
#pragma once

#include <trireme/comm/engines/shm/member.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme::shm {

/// The steps of one rank. Not thread-safe: one operation at a time.
class Steps {
 public:
  explicit Steps(Member& member) : member_(member) {}

  int rank() const noexcept { return member_.rank(); }
  int size() const noexcept { return member_.size(); }
  std::size_t slot_bytes() const noexcept { return member_.layout().slot_bytes; }
  Member& member() const noexcept { return member_; }

  /// Reserves the numbers of the next steps and returns the first one. Equal on all ranks.
  std::uint64_t take(std::uint64_t count) {
    first_of_operation_ = next_;
    next_ += count;
    return first_of_operation_;
  }

  /// Returns whether the slot of the next step is free, so that begin_write does not block.
  bool can_write() noexcept;

  /// Blocks until the slot of that step is free, and returns where to write up to `bytes` bytes.
  std::byte* begin_write(std::uint64_t step, std::size_t bytes, const Call& call);

  /// Makes what was written visible to the other ranks.
  void publish(std::uint64_t step, const Call& call) {
    Head& head = member_.slot(rank(), step);
    head.operation = call.operation;
    head.history = call.history;
    head.step.store(step + 1, std::memory_order_seq_cst);
    member_.wake();
  }

  /// Blocks until `peer` has written that step, and returns what it wrote. `bytes` must be the
  /// length that it passed to begin_write. In the first step of an operation, this checks that the
  /// peer runs the same operation after the same calls. The root of a broadcast reads nothing, so
  /// it notices a mismatch in its next call.
  const std::byte* await(int peer, std::uint64_t step, std::size_t bytes, const Call& call) {
    const Head& head = member_.slot(peer, step);
    member_.wait_for(peer, call,
                     [&] { return head.step.load(std::memory_order_seq_cst) == step + 1; });
    if (step == first_of_operation_ &&
        (head.operation != call.operation || head.history != call.history)) {
      mismatch(peer, head.operation, call);
    }
    return bytes <= Head::kInlineBytes ? head.bytes.data()
                                       : reinterpret_cast<const std::byte*>(&head + 1);
  }

  /// Blocks until all ranks have come here, and have read and written everything that they needed
  /// to. Takes one step.
  void synchronize(const Call& call);

  /// Publishes that this rank has read everything that it needs of the steps up to this one.
  void finish(std::uint64_t step) {
    member_.block(rank()).finished.store(step + 1, std::memory_order_seq_cst);
    member_.wake();
  }

 private:
  bool is_free(int peer, std::uint64_t step) noexcept;
  [[noreturn]] void mismatch(int peer, const Operation& theirs, const Call& call);

  Member& member_;
  std::uint64_t next_ = 0;
  std::uint64_t first_of_operation_ = 0;
  std::array<std::uint64_t, kMaximumRanks> finished_ = {};  // as last seen, per rank
};

/// Runs an operation each of whose steps is one write and one read. `write(step, index)` is called
/// one step ahead of `read(step, index)`. A rank that has nothing to write or read does nothing in
/// it.
template <typename Write, typename Read>
void run_steps(Steps& steps, std::uint64_t count, const Write& write, const Read& read) {
  const std::uint64_t first = steps.take(count);
  write(first, std::uint64_t{0});
  for (std::uint64_t index = 0; index < count; ++index) {
    if (index + 1 < count) write(first + index + 1, index + 1);
    read(first + index, index);
    steps.finish(first + index);
  }
}

}  // namespace trireme::shm
