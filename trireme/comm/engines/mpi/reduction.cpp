// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/mpi/reduction.h>

#include <trireme/base/error.h>
#include <trireme/comm/adapter/operation.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>

#include <utility>

namespace trireme::comm::mpi {
namespace {

using RedOpType = c10d::ReduceOp::RedOpType;

// For bool, the sum is `or` and the product is `and`: the maximum and minimum of its bytes.
Fold fold_of(RedOpType op, bool is_bool) {
  switch (op) {
    case RedOpType::PRODUCT:
      return is_bool ? Fold::kMinimum : Fold::kProduct;
    case RedOpType::MIN:
      return Fold::kMinimum;
    case RedOpType::MAX:
      return Fold::kMaximum;
    case RedOpType::BAND:
      return Fold::kAnd;
    case RedOpType::BOR:
      return Fold::kOr;
    case RedOpType::BXOR:
      return Fold::kXor;
    default:
      return is_bool ? Fold::kMaximum : Fold::kSum;
  }
}

Element element_of(at::ScalarType type, OperationKind kind) {
  switch (type) {
    case at::kDouble:
      return Element::kFloat64;
    case at::kFloat:
      return Element::kFloat32;
    case at::kChar:
      return Element::kInt8;
    case at::kShort:
      return Element::kInt16;
    case at::kInt:
      return Element::kInt32;
    case at::kLong:
      return Element::kInt64;
    case at::kByte:
    case at::kBool:
      return Element::kUint8;
    case at::kComplexFloat:
      return Element::kComplex64;
    case at::kComplexDouble:
      return Element::kComplex128;
    default:
      throw UsageError(join_message(name_of(kind), " cannot reduce elements of ", type),
                       "convert the tensor to a standard dtype");
  }
}

at::Tensor factor_of(const c10d::ReduceOp& op) {
  const auto& given = dynamic_cast<const PreMultipliedSumFactor&>(*op.supplement_);
  return given.tensor_factor.defined() ? given.tensor_factor.reshape({})
                                       : at::scalar_tensor(given.double_factor, at::kDouble);
}

}  // namespace

Reduction::Reduction(OperationKind operation, at::ScalarType type, const c10d::ReduceOp& op,
                     int size)
    : type_(type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type) {
  check_reduction(operation, op, type);
  const RedOpType kind = op;
  element_ = element_of(type_, operation);
  fold_ = fold_of(kind, type == at::kBool);
  if (kind == RedOpType::AVG) divisor_ = size;
  if (kind == RedOpType::PREMUL_SUM) factor_ = factor_of(op);
}

at::Tensor Reduction::contribution(const at::Tensor& input) const {
  at::Tensor ready = input.to(type_).contiguous();
  if (!factor_.defined()) return ready;
  return ready.is_same(input) ? ready.mul(factor_).to(type_) : ready.mul_(factor_);
}

at::Tensor Reduction::contribution_in_place(const at::Tensor& data) const {
  at::Tensor ready = data.to(type_).contiguous();
  return factor_.defined() ? ready.mul_(factor_) : ready;
}

at::Tensor Reduction::landing(const at::Tensor& output) const {
  if (output.is_contiguous() && output.scalar_type() == type_) return output;
  return at::empty(output.sizes(), output.options().dtype(type_));
}

void Reduction::deliver(const at::Tensor& landed, const at::Tensor& output,
                        MpiOperation& work) const {
  if (divisor_ == 1 && landed.is_same(output)) {
    work.then([output] {});  // keeps the memory
    return;
  }
  work.then([landed, output, divisor = divisor_] {
    if (divisor != 1 && at::isIntegralType(landed.scalar_type(), true)) {
      landed.div_(divisor, "trunc");
    } else if (divisor != 1) {
      landed.div_(divisor);
    }
    if (!landed.is_same(output)) output.copy_(landed);
  });
}

}  // namespace trireme::comm::mpi
