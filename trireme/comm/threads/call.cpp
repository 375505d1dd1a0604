// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/threads/call.h>

#include <trireme/base/error.h>

namespace trireme::comm::threads {
namespace {

const char* name_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "average";
    case c10d::ReduceOp::PRODUCT:
      return "product";
    case c10d::ReduceOp::MIN:
      return "minimum";
    case c10d::ReduceOp::MAX:
      return "maximum";
    case c10d::ReduceOp::BAND:
      return "and";
    case c10d::ReduceOp::BOR:
      return "or";
    case c10d::ReduceOp::BXOR:
      return "xor";
    default:
      return "unknown reduction";
  }
}

std::string elements_of(const Call& call) {
  return join_message(call.elements, call.elements == 1 ? " element of " : " elements of ",
                      call.dtype);
}

std::string details_of(const Call& call) {
  switch (call.kind) {
    case Kind::kBroadcast:
    case Kind::kScatter:
      return join_message(" (from rank ", call.peer, ", ", elements_of(call), ")");
    case Kind::kReduce:
      return join_message(" (", name_of(call.op), " to rank ", call.peer, ", ", elements_of(call),
                          ")");
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      return join_message(" (", name_of(call.op), ", ", elements_of(call), ")");
    case Kind::kAllToAll:
      return join_message(" (", call.dtype, ")");
    case Kind::kGather:
      return join_message(" (to rank ", call.peer, ", ", elements_of(call), ")");
    case Kind::kAllGather:
      return join_message(" (", elements_of(call), ")");
    case Kind::kBarrier:
      return "";
    default:
      return join_message(" (", elements_of(call), ", ",
                          call.elements * static_cast<std::int64_t>(c10::elementSize(call.dtype)),
                          " bytes)");
  }
}

}  // namespace

const char* name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::kSend:
      return "send";
    case Kind::kReceive:
      return "receive";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllReduce:
      return "all-reduce";
    case Kind::kReduce:
      return "reduce";
    case Kind::kAllGather:
      return "all-gather";
    case Kind::kGather:
      return "gather";
    case Kind::kScatter:
      return "scatter";
    case Kind::kReduceScatter:
      return "reduce-scatter";
    case Kind::kAllToAll:
      return "all-to-all";
    case Kind::kBarrier:
      return "barrier";
  }
  return "operation";
}

bool Call::fits(const Call& other) const noexcept {
  return kind == other.kind && peer == other.peer && op == other.op && dtype == other.dtype &&
         elements == other.elements;
}

std::string describe(const Call& call) {
  if (call.is_message()) {
    return join_message(name_of(call.kind), call.kind == Kind::kSend ? " to" : " from", " rank ",
                        call.peer, " with tag ", call.tag, details_of(call));
  }
  return join_message(name_of(call.kind), ", number ", call.number, details_of(call));
}

}  // namespace trireme::comm::threads
