// SPDX-License-Identifier: Apache-2.0
// Element types and reductions of the shared-memory engine, which knows nothing of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::shm {

enum class DataType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
  kComplex64,
  kComplex128,
};
inline constexpr int kNumDataTypes = 12;

/// How elements of several ranks become one: a left fold in rank order. fp16 and bf16 are folded in
/// fp32 and rounded once. kAverage divides the sum by the number of ranks (integers truncate);
/// kPreMultipliedSum multiplies each contribution by a factor first. Bool adds as `or` and
/// multiplies as `and`. A NaN wins in kMinimum and kMaximum.
enum class ReduceOp : std::uint8_t {
  kSum,
  kAverage,
  kProduct,
  kMinimum,
  kMaximum,
  kAnd,
  kOr,
  kXor,
  kPreMultipliedSum,
};
inline constexpr int kNumReduceOps = 9;

/// A reduction with its factor, which only kPreMultipliedSum reads.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;
  bool operator==(const Reduction&) const = default;
};

/// Bytes of one element.
constexpr std::size_t size_of(DataType type) {
  constexpr std::size_t kSizes[kNumDataTypes] = {8, 4, 2, 2, 1, 2, 4, 8, 1, 1, 8, 16};
  return kSizes[static_cast<int>(type)];
}

constexpr std::string_view name_of(DataType type) {
  constexpr std::string_view kNames[kNumDataTypes] = {
      "float64", "float32", "float16", "bfloat16", "int8",      "int16",
      "int32",   "int64",   "uint8",   "bool",     "complex64", "complex128"};
  return kNames[static_cast<int>(type)];
}

constexpr std::string_view name_of(ReduceOp op) {
  constexpr std::string_view kNames[kNumReduceOps] = {
      "sum", "average", "product", "minimum", "maximum", "and", "or", "xor", "pre-multiplied sum"};
  return kNames[static_cast<int>(op)];
}

}  // namespace trireme::shm
