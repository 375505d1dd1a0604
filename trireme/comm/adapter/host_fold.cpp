// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/host_fold.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/operation.h>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <algorithm>
#include <bit>

namespace trireme::comm {
namespace {

using c10d::ReduceOp;

// Below ATen's grain size, so that the folding thread starts no team of OpenMP threads. Also small
// enough for the accumulator to stay in the cache, and a multiple of the vector length.
constexpr std::int64_t kChunk = at::internal::GRAIN_SIZE - 64;

template <typename Visit>
void for_each_chunk(std::int64_t elements, const Visit& visit) {
  for (std::int64_t begin = 0; begin < elements; begin += kChunk) {
    visit(begin, std::min(kChunk, elements - begin));
  }
}

// Returns the part of an average's divisor that is applied before the sum.
int divided_before(at::ScalarType type, const ReduceOp& op, int num_ranks) {
  if (op.op_ != ReduceOp::AVG || !at::isReducedFloatingType(type)) return 1;
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_ranks)));
}

}  // namespace

ReduceOp::RedOpType phase_operation(const ReduceOp& op) {
  return op.op_ == ReduceOp::AVG || op.op_ == ReduceOp::PREMUL_SUM ? ReduceOp::SUM : op.op_;
}

void combine(at::Tensor& into, const at::Tensor& part, ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
      into.add_(part);
      return;
    case ReduceOp::PRODUCT:
      into.mul_(part);
      return;
    case ReduceOp::MIN:
      at::minimum_out(into, into, part);
      return;
    case ReduceOp::MAX:
      at::maximum_out(into, into, part);
      return;
    case ReduceOp::BAND:
      into.bitwise_and_(part);
      return;
    case ReduceOp::BOR:
      into.bitwise_or_(part);
      return;
    case ReduceOp::BXOR:
      into.bitwise_xor_(part);
      return;
    default:
      throw InternalError(join_message("no fold for reduce operation ", static_cast<int>(op)),
                          "this is a defect in Trireme; please report it");
  }
}

void scale_before(const at::Tensor& tensor, const ReduceOp& op, int num_ranks) {
  if (const int before = divided_before(tensor.scalar_type(), op, num_ranks); before != 1) {
    for_each_chunk(tensor.numel(), [&](std::int64_t begin, std::int64_t length) {
      at::Tensor chunk = tensor.narrow(0, begin, length);
      chunk.div_(before);
    });
  }
  if (op.op_ != ReduceOp::PREMUL_SUM) return;
  const auto* factor = dynamic_cast<const PreMultipliedSumFactor*>(op.supplement_.get());
  if (factor == nullptr) {
    throw UsageError("a pre-multiplied sum without its factor",
                     "make the operation by c10d::makePreMulSum");
  }
  for_each_chunk(tensor.numel(), [&](std::int64_t begin, std::int64_t length) {
    at::Tensor chunk = tensor.narrow(0, begin, length);
    if (factor->tensor_factor.defined()) {
      chunk.mul_(factor->tensor_factor);
    } else {
      chunk.mul_(factor->double_factor);
    }
  });
}

void divide_after(const at::Tensor& tensor, at::ScalarType type, const ReduceOp& op,
                  int num_ranks) {
  const int before = divided_before(type, op, num_ranks);
  if (op.op_ != ReduceOp::AVG || before == num_ranks) return;
  const double rest = static_cast<double>(num_ranks) / before;
  const bool cut_off = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  for_each_chunk(tensor.numel(), [&](std::int64_t begin, std::int64_t length) {
    at::Tensor chunk = tensor.narrow(0, begin, length);
    if (cut_off) {
      chunk.div_(num_ranks, "trunc");
    } else {
      chunk.div_(rest);
    }
  });
}

void fold(const at::Tensor& parts, const ReduceOp& op, int num_ranks, const at::Tensor& out) {
  const ReduceOp::RedOpType phase = phase_operation(op);
  const bool widen = at::isReducedFloatingType(out.scalar_type()) &&
                     (phase == ReduceOp::SUM || phase == ReduceOp::PRODUCT);
  const at::Tensor wide =
      widen ? at::empty({std::min(kChunk, out.numel())}, at::kFloat) : at::Tensor();
  for_each_chunk(out.numel(), [&](std::int64_t begin, std::int64_t length) {
    at::Tensor result = out.narrow(0, begin, length);
    at::Tensor into = widen ? wide.narrow(0, 0, length) : result;
    into.copy_(parts.select(0, 0).narrow(0, begin, length));
    for (std::int64_t part = 1; part < parts.size(0); ++part) {
      combine(into, parts.select(0, part).narrow(0, begin, length), phase);
    }
    divide_after(into, out.scalar_type(), op, num_ranks);
    if (widen) result.copy_(into);
  });
}

}  // namespace trireme::comm
