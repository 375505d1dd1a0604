// SPDX-License-Identifier: Apache-2.0
// The layout of the shared memory of a group. Other processes read all of it, so it has fixed sizes
// and no pointers.
//
//     GroupBlock | RankBlock of rank 0, 1, … | slots of rank 0, 1, … | mailboxes (sender, receiver)
#pragma once

#include <trireme/comm/engines/shm/data_type.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace trireme::shm {

inline constexpr int kMaximumRanks = 64;
inline constexpr std::size_t kCacheLine = 64;

/// The kinds of operations, for checks and messages.
enum class Kind : std::uint8_t {
  kNone,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kReceive,
  kAllocate,
};
std::string_view name_of(Kind kind);

/// What a rank says it is doing. It must be equal on all ranks of a collective; a difference means
/// that the ranks made different calls.
struct Operation {
  Kind kind = Kind::kNone;
  DataType type = DataType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::int8_t root = -1;  ///< or the peer of a send or receive
  std::uint32_t sequence = 0;
  std::uint64_t count = 0;  ///< elements, of the smallest piece that all ranks know
  bool operator==(const Operation&) const = default;
};
static_assert(sizeof(Operation) == 16);

/// The head of a slot. A message of up to kInlineBytes travels in this cache line alone.
struct alignas(kCacheLine) Head {
  static constexpr std::size_t kInlineBytes = 32;
  /// The number of the step in the slot, plus one. Stored last, with release order, after
  /// everything else in the slot. Steps of a rank count up by one.
  std::atomic<std::uint64_t> step;
  Operation operation;
  std::uint64_t history;  ///< digest of all calls of the rank up to this one
  std::array<std::byte, kInlineBytes> bytes;
};
static_assert(sizeof(Head) == kCacheLine);

/// An entry of the recorder. Other ranks read it while its owner may be writing the next one to the
/// same place. So all fields are atomic, and `number` says whether they belong together.
struct alignas(kCacheLine) Record {
  static constexpr std::size_t kLabelWords = 11;
  std::atomic<std::uint64_t>
      number;  ///< counts the records of a rank from 1; 0 while it is written
  std::array<std::atomic<std::uint64_t>, 2> operation;
  std::atomic<std::int64_t> started_ns;   ///< on the monotonic clock, which all processes share
  std::atomic<std::int64_t> finished_ns;  ///< 0 while it runs
  std::array<std::atomic<std::uint64_t>, kLabelWords> label;
};
static_assert(sizeof(Record) == 128);

/// The control block of a rank.
struct alignas(kCacheLine) RankBlock {
  static constexpr std::size_t kRecords = 128;

  /// The number of steps that this rank has read completely. Their slots may be written again.
  alignas(kCacheLine) std::atomic<std::uint64_t> finished;

  /// The ranks that sleep until this rank makes progress, a bit each.
  alignas(kCacheLine) std::atomic<std::uint64_t> sleepers;

  /// The futex that this rank sleeps on. A rank that wakes it increments it.
  alignas(kCacheLine) std::atomic<std::uint32_t> alarm;

  /// The ranks that this rank waits for while it sleeps, a bit each. Following them leads to the
  /// rank that holds up the others.
  std::atomic<std::uint64_t> waits_for;

  /// The rank of the world, plus one, that this rank has waited for in any group for long; 0 for
  /// none.
  std::atomic<std::int64_t> waits_in_world_for;

  /// The process of this rank. Written before the group is used.
  alignas(kCacheLine) std::int64_t process;
  std::uint64_t process_namespace;
  std::atomic<std::uint32_t> state;  ///< RankState

  /// The last collectives, each with the digest of all calls up to it. The place is the sequence
  /// number modulo kCalled.
  struct Called {
    std::atomic<std::uint64_t> sequence;
    std::atomic<std::uint64_t> history;
  };
  static constexpr std::size_t kCalled = 16;
  alignas(kCacheLine) std::array<Called, kCalled> called;

  alignas(kCacheLine) std::atomic<std::uint64_t> num_records;
  std::array<Record, kRecords> records;
};

/// The states of a rank.
enum class RankState : std::uint32_t {
  kAbsent,
  kJoined,
  kLeaving,  ///< starts and receives nothing more, but finishes its sends
  kLeft,
};

/// The control block of the group.
struct alignas(kCacheLine) GroupBlock {
  static constexpr std::size_t kMessageBytes = 8192;
  static constexpr std::size_t kHintBytes = 512;
  /// 0 while the group works. The first rank that fails sets it to 1, writes the fields below, and
  /// then sets it to 2.
  std::atomic<std::uint32_t> failure;
  std::int32_t failed_rank;
  std::int32_t failed_peer;
  std::array<char, kMessageBytes> message;
  std::array<char, kHintBytes> hint;
};

/// One direction between two ranks: a ring of bytes. `written` and `read` only grow.
struct alignas(kCacheLine) Mailbox {
  std::atomic<std::uint64_t> written;
  alignas(kCacheLine) std::atomic<std::uint64_t> read;
};

/// The sizes on which the ranks of a group agree.
struct Layout {
  int size = 1;
  std::size_t slot_bytes = 0;     ///< bytes of data after the head; a multiple of a page
  int num_slots = 4;              ///< per rank
  std::size_t mailbox_bytes = 0;  ///< bytes of data, a power of two

  std::size_t slot_stride() const { return sizeof(Head) + slot_bytes; }
  std::size_t ranks_at() const { return sizeof(GroupBlock); }
  std::size_t slots_at() const {
    return round_up(ranks_at() + static_cast<std::size_t>(size) * sizeof(RankBlock), 4096);
  }
  std::size_t mailboxes_at() const {
    return slots_at() + static_cast<std::size_t>(size * num_slots) * slot_stride();
  }
  std::size_t mailbox_stride() const { return sizeof(Mailbox) + mailbox_bytes; }
  std::size_t bytes() const {
    return mailboxes_at() +
           static_cast<std::size_t>(size) * static_cast<std::size_t>(size) * mailbox_stride();
  }

  static constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  }
};

}  // namespace trireme::shm
