// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/operation.h>

#include <trireme/base/error.h>

#include <ATen/core/LegacyTypeDispatch.h>

namespace trireme::comm {
namespace {

using c10d::ReduceOp;

const char* name_of(ReduceOp::RedOpType op) {
  constexpr const char* kNames[] = {"sum",        "average",     "product",
                                    "minimum",    "maximum",     "bitwise and",
                                    "bitwise or", "bitwise xor", "pre-multiplied sum"};
  return op < ReduceOp::UNUSED ? kNames[op] : "unknown reduction";
}

bool is_defined(ReduceOp::RedOpType op, at::ScalarType type) {
  const bool is_fraction = at::isFloatingType(type) || at::isComplexType(type);
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::PRODUCT:
      return true;
    case ReduceOp::AVG:
      return type != at::kBool;
    case ReduceOp::MIN:
    case ReduceOp::MAX:
      return !at::isComplexType(type);
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR:
      return !is_fraction;
    case ReduceOp::PREMUL_SUM:
      return is_fraction;
    case ReduceOp::UNUSED:
      break;
  }
  return false;
}

std::string details_of(const OperationSummary& operation) {
  const auto& [kind, peer, tag, number, reduction, dtype, count] = operation;
  const std::string elements =
      join_message(count, count == 1 ? " element of " : " elements of ", dtype);
  switch (kind) {
    case OperationKind::kBroadcast:
    case OperationKind::kScatter:
      return join_message(" (from rank ", peer, ", ", elements, ")");
    case OperationKind::kReduce:
      return join_message(" (", name_of(reduction), " to rank ", peer, ", ", elements, ")");
    case OperationKind::kAllReduce:
    case OperationKind::kReduceScatter:
      return join_message(" (", name_of(reduction), ", ", elements, ")");
    case OperationKind::kAllToAll:
      return join_message(" (", dtype, ")");
    case OperationKind::kGather:
      return join_message(" (to rank ", peer, ", ", elements, ")");
    case OperationKind::kAllGather:
      return join_message(" (", elements, ")");
    case OperationKind::kBarrier:
      return "";
    default:
      return join_message(" (", elements, ", ",
                          count * static_cast<std::int64_t>(c10::elementSize(dtype)), " bytes)");
  }
}

// Returns the buffer whose length describes the operation.
const Buffer& measure_of(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kSend:
    case OperationKind::kAllGather:
    case OperationKind::kGather:
    case OperationKind::kReduceScatter:
    case OperationKind::kAllToAll:
      return operation.input;
    default:
      return operation.output;
  }
}

}  // namespace

const char* name_of(OperationKind kind) noexcept {
  constexpr const char* kNames[] = {"send",           "receive",    "broadcast", "all-reduce",
                                    "reduce",         "all-gather", "gather",    "scatter",
                                    "reduce-scatter", "all-to-all", "barrier"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* profiling_name_of(OperationKind kind) noexcept {
  constexpr const char* kNames[] = {"send",           "recv",       "broadcast", "all_reduce",
                                    "reduce",         "all_gather", "gather",    "scatter",
                                    "reduce_scatter", "all_to_all", "barrier"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool is_message(OperationKind kind) noexcept {
  return kind == OperationKind::kSend || kind == OperationKind::kReceive;
}

Buffer::Buffer(at::Tensor whole, const std::vector<std::int64_t>& lengths)
    : whole_(std::move(whole)), num_pieces_(static_cast<int>(lengths.size())) {
  offsets_.reserve(lengths.size() + 1);
  offsets_.push_back(0);
  for (const std::int64_t length : lengths) offsets_.push_back(offsets_.back() + length);
}

at::ScalarType Buffer::dtype() const {
  if (num_pieces_ == 0) return at::kByte;
  return is_block() ? whole_.scalar_type() : pieces_.front().scalar_type();
}

std::int64_t Buffer::offset(int piece) const {
  if (num_pieces_ == 1) return 0;
  return offsets_.empty() ? whole_.numel() / num_pieces_ * piece
                          : offsets_[static_cast<std::size_t>(piece)];
}

std::int64_t Buffer::length(int piece) const {
  if (!is_block()) return pieces_[static_cast<std::size_t>(piece)].numel();
  if (offsets_.empty()) return whole_.numel() / num_pieces_;
  return offset(piece + 1) - offset(piece);
}

std::size_t Buffer::num_bytes(int piece) const {
  return static_cast<std::size_t>(length(piece)) * c10::elementSize(dtype());
}

std::byte* Buffer::data(int piece) const {
  if (!is_block()) {
    return static_cast<std::byte*>(pieces_[static_cast<std::size_t>(piece)].data_ptr());
  }
  return static_cast<std::byte*>(whole_.data_ptr()) +
         offset(piece) * static_cast<std::int64_t>(whole_.itemsize());
}

at::Tensor Buffer::piece(int index) const {
  if (!is_block()) return pieces_[static_cast<std::size_t>(index)];
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return whole_.as_strided({length(index)}, {1}, whole_.storage_offset() + offset(index));
}

std::vector<at::Tensor> Buffer::pieces() const {
  if (!is_block()) return pieces_;
  std::vector<at::Tensor> all;
  for (int index = 0; index < num_pieces_; ++index) all.push_back(piece(index));
  return all;
}

std::vector<std::int64_t> Buffer::lengths() const {
  std::vector<std::int64_t> all;
  for (int index = 0; index < num_pieces_; ++index) all.push_back(length(index));
  return all;
}

void Operation::copy_back() const {
  if (write_back.empty()) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const auto& [to, from] : write_back) to.copy_(from);
}

bool OperationSummary::fits(const OperationSummary& other) const noexcept {
  return kind == other.kind && peer == other.peer && reduction == other.reduction &&
         dtype == other.dtype && num_elements == other.num_elements;
}

std::vector<at::Tensor> profiled_tensors(const Operation& operation) {
  const Buffer& input = operation.input;
  if (input.num_pieces() == 0) return operation.results;
  return input.is_block() ? std::vector{input.whole()} : input.pieces();
}

OperationSummary summary_of(const Operation& operation) {
  const Buffer& measure = measure_of(operation);
  std::int64_t count = 0;
  for (int piece = 0; piece < measure.num_pieces(); ++piece) count += measure.length(piece);
  return {.kind = operation.kind,
          .peer = operation.peer,
          .tag = operation.tag,
          .number = operation.number,
          .reduction = operation.reduction.op_,
          .dtype = measure.dtype(),
          .num_elements = operation.kind == OperationKind::kAllToAll ? 0 : count};
}

std::string describe(const Operation& operation) { return describe(summary_of(operation)); }

std::string describe(const OperationSummary& operation) {
  if (!is_message(operation.kind)) {
    return join_message(name_of(operation.kind), ", number ", operation.number,
                        details_of(operation));
  }
  const std::string peer =
      operation.peer < 0 ? std::string("any rank") : join_message("rank ", operation.peer);
  return join_message(name_of(operation.kind),
                      operation.kind == OperationKind::kSend ? " to " : " from ", peer,
                      " with tag ", operation.tag, details_of(operation));
}

void check_reduction(OperationKind kind, const c10d::ReduceOp& op, at::ScalarType type) {
  if (!is_defined(op.op_, type)) {
    throw UsageError(
        join_message(name_of(kind), ": ", name_of(op.op_), " is not defined for ", type),
        "and, or, xor are for integers and bool; minimum and maximum for all but "
        "complex; average for all but bool; a pre-multiplied sum for floating point");
  }
  if (op.op_ == ReduceOp::PREMUL_SUM &&
      dynamic_cast<const PreMultipliedSumFactor*>(op.supplement_.get()) == nullptr) {
    throw UsageError("a pre-multiplied sum without its factor",
                     "make the operation by c10d::makePreMulSum");
  }
}

}  // namespace trireme::comm
