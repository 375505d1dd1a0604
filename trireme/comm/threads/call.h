// SPDX-License-Identifier: Apache-2.0
// What a rank asks of the engine in one call, and how it is named in messages.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <string>

namespace trireme::comm::threads {

enum class Kind : std::uint8_t {
  kSend,
  kReceive,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier
};

struct Call {
  Kind kind = Kind::kBarrier;
  int rank = 0;   ///< which calls
  int peer = -1;  ///< of a message the other rank, else the root where there is one
  int tag = 0;    ///< of a message
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::UNUSED;
  at::ScalarType dtype = at::kByte;
  /// Of the message, of what this rank gives, or of what it gets from a scatter; 0 for all-to-all,
  /// whose parts may be unequal.
  std::int64_t elements = 0;
  std::uint64_t number = 0;  ///< among this rank's collectives, from 1; 0 for messages

  bool is_message() const noexcept { return kind == Kind::kSend || kind == Kind::kReceive; }
  /// Whether both are the same collective, but for who calls.
  bool fits(const Call& other) const noexcept;
};

const char* name_of(Kind kind) noexcept;

/// `receive from rank 1 with tag 3 (4 elements of Float, 16 bytes)`, `all-reduce, number 2 (sum,
/// 4 elements of Float)`.
std::string describe(const Call& call);

}  // namespace trireme::comm::threads
