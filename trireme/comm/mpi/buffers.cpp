// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/mpi/buffers.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>

#include <utility>

namespace trireme::comm::mpi {
namespace {

using RedOpType = c10d::ReduceOp::RedOpType;

const char* name_of(RedOpType op) {
  switch (op) {
    case RedOpType::SUM:
      return "sum";
    case RedOpType::AVG:
      return "average";
    case RedOpType::PRODUCT:
      return "product";
    case RedOpType::MIN:
      return "minimum";
    case RedOpType::MAX:
      return "maximum";
    case RedOpType::BAND:
      return "bitwise and";
    case RedOpType::BOR:
      return "bitwise or";
    case RedOpType::BXOR:
      return "bitwise xor";
    case RedOpType::PREMUL_SUM:
      return "pre-multiplied sum";
    case RedOpType::UNUSED:
      break;
  }
  return "unknown";
}

bool is_defined(RedOpType op, at::ScalarType type) {
  const bool is_fraction = at::isFloatingType(type) || at::isComplexType(type);
  switch (op) {
    case RedOpType::SUM:
    case RedOpType::PRODUCT:
      return true;
    case RedOpType::AVG:
      return type != at::kBool;
    case RedOpType::MIN:
    case RedOpType::MAX:
      return !at::isComplexType(type);
    case RedOpType::BAND:
    case RedOpType::BOR:
    case RedOpType::BXOR:
      return !is_fraction;
    case RedOpType::PREMUL_SUM:
      return is_fraction;
    case RedOpType::UNUSED:
      break;
  }
  return false;
}

// Sums of bool are `or`, products `and`: maximum and minimum of its bytes.
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

Element element_of(at::ScalarType type, const char* title) {
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
      throw UsageError(join_message(title, " cannot reduce elements of ", type),
                       "convert the tensor to a standard dtype");
  }
}

at::Tensor factor_of(const c10d::ReduceOp& op) {
  const auto* const given = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  require(given != nullptr, "make it by c10d::makePreMulSum",
          "a pre-multiplied sum without its factor");
  return given->tensor_factor.defined() ? given->tensor_factor.reshape({})
                                        : at::scalar_tensor(given->double_factor, at::kDouble);
}

}  // namespace

void check_input(const at::Tensor& tensor, const char* title) {
  require(tensor.defined(), "give a tensor", title, " was given an undefined tensor");
  require(tensor.device().is_cpu() && tensor.layout() == at::kStrided,
          "copy it with tensor.cpu(), or use an engine for its device", title,
          " was given a tensor of device ", tensor.device(), " and layout ", tensor.layout(),
          ", expected a dense one in CPU memory");
}

void check_output(const at::Tensor& tensor, const char* title) {
  check_input(tensor, title);
  require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "pass tensor.contiguous()",
          title, " was given an output with sizes ", tensor.sizes(), " and strides ",
          tensor.strides(), ", whose elements share memory");
}

Bytes bytes_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<std::int64_t>(tensor.nbytes())};
}

at::Tensor landing(const at::Tensor& tensor, MpiWork& work) {
  if (tensor.is_contiguous()) return tensor;
  at::Tensor landed = at::empty(tensor.sizes(), tensor.options());
  work.then([landed, tensor] { tensor.copy_(landed); });
  return landed;
}

Reduction::Reduction(at::ScalarType type, const c10d::ReduceOp& op, int size, const char* title)
    : type_(type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type) {
  const RedOpType kind = op;
  require(is_defined(kind, type), "convert the tensor, or take another reduction", title, ": ",
          name_of(kind), " is not defined for ", type);
  element_ = element_of(type_, title);
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

void Reduction::deliver(const at::Tensor& landed, const at::Tensor& output, MpiWork& work) const {
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
