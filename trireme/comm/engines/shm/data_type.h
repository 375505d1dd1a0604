// SPDX-License-Identifier: Apache-2.0
// Element types and reductions of the shared-memory engine, which does not depend on LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::shm {

/// The types of elements.
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

/// How the elements of several ranks are combined, always in rank order. fp16 and bf16 are combined
/// in fp32 and rounded once. kAverage divides the sum by the number of ranks; integers are
/// truncated. kPreMultipliedSum multiplies each contribution by a factor first. For bool, the sum
/// is `or` and the product is `and`. In kMinimum and kMaximum a NaN wins.
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

/// A reduction and its factor. Only kPreMultipliedSum reads the factor.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;
  bool operator==(const Reduction&) const = default;
};

/// Returns the number of bytes of an element.
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
