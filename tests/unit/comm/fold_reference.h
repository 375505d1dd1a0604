// SPDX-License-Identifier: Apache-2.0
// The reductions of the shared-memory engine once more, one element at a time and as plainly as
// they can be written, for tests to compare with. 16-bit floating point is coded by way of double,
// unlike in the engine.
#pragma once

#include <trireme/comm/engines/shm/data_type.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace trireme::shm::test {

using Bytes = std::vector<std::byte>;

/// A binary floating-point format of 16 bits.
struct Format {
  int digits;    ///< of the significand, with the implicit one
  int smallest;  ///< exponent of the last digit of a subnormal
  std::uint16_t infinity;
};
inline constexpr Format kHalf{.digits = 11, .smallest = -24, .infinity = 0x7c00};
inline constexpr Format kBFloat{.digits = 8, .smallest = -133, .infinity = 0x7f80};

inline double decode(Format format, std::uint16_t bits) {
  const int magnitude = bits & 0x7fff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (magnitude > format.infinity) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == format.infinity) return sign * std::numeric_limits<double>::infinity();
  const int hidden = 1 << (format.digits - 1);
  const int exponent = magnitude / hidden;
  const int fraction = magnitude % hidden;
  return sign * (exponent == 0 ? std::ldexp(fraction, format.smallest)
                               : std::ldexp(hidden + fraction, format.smallest + exponent - 1));
}

/// Rounds to the nearest, and to the even one of two that are equally near.
inline std::uint16_t encode(Format format, double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(format.infinity | 0x40);
  if (value == 0) return sign;
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | format.infinity);
  int exponent = 0;
  std::frexp(value, &exponent);
  const int last = std::max(exponent - format.digits, format.smallest);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), -last)));
  // A carry out of the significand ends in the exponent, as it should.
  const long bits = (static_cast<long>(last - format.smallest) << (format.digits - 1)) + units;
  return static_cast<std::uint16_t>(sign | std::min<long>(bits, format.infinity));
}

template <typename T>
T read(const std::byte* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void write(std::byte* to, std::size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

using Sources = std::span<const std::byte* const>;

template <typename Real>
Real combine_reals(ReduceOp op, Real a, Real b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kPreMultipliedSum:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMinimum:
      return std::isnan(a) || a < b ? a : b;
    case ReduceOp::kMaximum:
      return std::isnan(a) || a > b ? a : b;
    default:
      throw std::logic_error("not for floating point");
  }
}

/// Folds element `index` of real numbers that `load` reads.
template <typename Real, typename Load>
Real fold_real(Sources sources, std::size_t index, Reduction reduction, const Load& load) {
  const auto contribution = [&](std::size_t source) {
    const Real value = load(sources[source], index);
    if (reduction.op != ReduceOp::kPreMultipliedSum) return value;
    return value * static_cast<Real>(reduction.factor);
  };
  Real value = contribution(0);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    value = combine_reals(reduction.op, value, contribution(s));
  }
  return reduction.op == ReduceOp::kAverage ? value / static_cast<Real>(sources.size()) : value;
}

template <typename Real>
void fold_reals(Sources sources, std::byte* to, std::size_t count, Reduction reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    write(to, i, fold_real<Real>(sources, i, reduction, read<Real>));
  }
}

inline void fold_short_reals(Sources sources, std::byte* to, std::size_t count, Reduction reduction,
                             Format format) {
  const auto load = [&](const std::byte* from, std::size_t index) {
    return static_cast<float>(decode(format, read<std::uint16_t>(from, index)));
  };
  for (std::size_t i = 0; i < count; ++i) {
    write(to, i, encode(format, fold_real<float>(sources, i, reduction, load)));
  }
}

template <typename Real>
void fold_complex(Sources sources, std::byte* to, std::size_t count, Reduction reduction) {
  if (reduction.op != ReduceOp::kProduct) {
    return fold_reals<Real>(sources, to, 2 * count, reduction);
  }
  for (std::size_t i = 0; i < 2 * count; i += 2) {
    Real real = read<Real>(sources[0], i);
    Real imaginary = read<Real>(sources[0], i + 1);
    for (const std::byte* source : sources.subspan(1)) {
      const Real next_real = read<Real>(source, i);
      const Real next_imaginary = read<Real>(source, i + 1);
      const Real product = real * next_real - imaginary * next_imaginary;
      imaginary = real * next_imaginary + imaginary * next_real;
      real = product;
    }
    write(to, i, real);
    write(to, i + 1, imaginary);
  }
}

// Works in 64 unsigned bits, whose low part is right whatever the width.
template <typename Integer>
void fold_integers(Sources sources, std::byte* to, std::size_t count, Reduction reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    auto value = static_cast<std::uint64_t>(std::int64_t{read<Integer>(sources[0], i)});
    for (const std::byte* source : sources.subspan(1)) {
      const Integer next = read<Integer>(source, i);
      const auto bits = static_cast<std::uint64_t>(std::int64_t{next});
      const auto so_far = static_cast<Integer>(value);
      switch (reduction.op) {
        case ReduceOp::kSum:
        case ReduceOp::kAverage:
          value += bits;
          break;
        case ReduceOp::kProduct:
          value *= bits;
          break;
        case ReduceOp::kMinimum:
          value = next < so_far ? bits : value;
          break;
        case ReduceOp::kMaximum:
          value = next > so_far ? bits : value;
          break;
        case ReduceOp::kAnd:
          value &= bits;
          break;
        case ReduceOp::kOr:
          value |= bits;
          break;
        case ReduceOp::kXor:
          value ^= bits;
          break;
        case ReduceOp::kPreMultipliedSum:
          throw std::logic_error("not for integers");
      }
    }
    auto result = static_cast<Integer>(value);
    if (reduction.op == ReduceOp::kAverage) {
      // Both are of at least the width of int here: no surprises of unsigned division.
      if constexpr (std::is_signed_v<Integer>) {
        const std::int64_t quotient =
            std::int64_t{result} / static_cast<std::int64_t>(sources.size());
        result = static_cast<Integer>(quotient);
      } else {
        result = static_cast<Integer>(result / sources.size());
      }
    }
    write(to, i, result);
  }
}

inline void fold_bools(Sources sources, std::byte* to, std::size_t count, Reduction reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    bool value = read<std::uint8_t>(sources[0], i) != 0;
    for (const std::byte* source : sources.subspan(1)) {
      const bool next = read<std::uint8_t>(source, i) != 0;
      switch (reduction.op) {
        case ReduceOp::kSum:
        case ReduceOp::kMaximum:
        case ReduceOp::kOr:
          value = value || next;
          break;
        case ReduceOp::kProduct:
        case ReduceOp::kMinimum:
        case ReduceOp::kAnd:
          value = value && next;
          break;
        case ReduceOp::kXor:
          value = value != next;
          break;
        default:
          throw std::logic_error("not for bool");
      }
    }
    write(to, i, static_cast<std::uint8_t>(value ? 1 : 0));
  }
}

/// Left fold of the sources, in their order.
inline Bytes fold_reference(Sources sources, std::size_t count, DataType type,
                            Reduction reduction) {
  Bytes result(count * size_of(type));
  std::byte* to = result.data();
  switch (type) {
    case DataType::kFloat64:
      fold_reals<double>(sources, to, count, reduction);
      break;
    case DataType::kFloat32:
      fold_reals<float>(sources, to, count, reduction);
      break;
    case DataType::kFloat16:
      fold_short_reals(sources, to, count, reduction, kHalf);
      break;
    case DataType::kBFloat16:
      fold_short_reals(sources, to, count, reduction, kBFloat);
      break;
    case DataType::kInt8:
      fold_integers<std::int8_t>(sources, to, count, reduction);
      break;
    case DataType::kInt16:
      fold_integers<std::int16_t>(sources, to, count, reduction);
      break;
    case DataType::kInt32:
      fold_integers<std::int32_t>(sources, to, count, reduction);
      break;
    case DataType::kInt64:
      fold_integers<std::int64_t>(sources, to, count, reduction);
      break;
    case DataType::kUInt8:
      fold_integers<std::uint8_t>(sources, to, count, reduction);
      break;
    case DataType::kBool:
      fold_bools(sources, to, count, reduction);
      break;
    case DataType::kComplex64:
      fold_complex<float>(sources, to, count, reduction);
      break;
    case DataType::kComplex128:
      fold_complex<double>(sources, to, count, reduction);
      break;
  }
  return result;
}

/// A small generator of random numbers (SplitMix64): the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31);
  }
  /// A number from 0 to `limit` - 1.
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }

 private:
  std::uint64_t state_;
};

/// One random element. Floating-point numbers have any sign and significand and magnitudes from
/// 2^-6 to 2^7, so that sums depend on their order and nothing becomes infinite or NaN soon.
inline void write_random(Random& random, DataType type, std::byte* to) {
  const std::uint64_t bits = random.next();
  const auto exponent = static_cast<std::uint64_t>(bits % 13);
  const auto write_float = [](std::byte* at, std::uint64_t any, std::uint64_t power) {
    write(at, 0, static_cast<std::uint32_t>((any >> 32 & 0x807fffffU) | (power + 121) << 23));
  };
  const auto write_double = [](std::byte* at, std::uint64_t any, std::uint64_t power) {
    write(at, 0, (any & 0x800fffffffffffffU) | (power + 1017) << 52);
  };
  switch (type) {
    case DataType::kFloat64:
      return write_double(to, bits, exponent);
    case DataType::kFloat32:
      return write_float(to, bits, exponent);
    case DataType::kFloat16:
      return write(to, 0, static_cast<std::uint16_t>((bits >> 48 & 0x83ff) | (exponent + 9) << 10));
    case DataType::kBFloat16:
      return write(to, 0,
                   static_cast<std::uint16_t>((bits >> 48 & 0x807f) | (exponent + 121) << 7));
    case DataType::kComplex64:
      write_float(to, bits, exponent);
      return write_float(to + 4, random.next(), exponent);
    case DataType::kComplex128:
      write_double(to, bits, exponent);
      return write_double(to + 8, random.next(), exponent);
    case DataType::kBool:
      return write(to, 0, static_cast<std::uint8_t>(bits & 1));
    default:
      std::memcpy(to, &bits, size_of(type));
  }
}

inline void fill_random(Random& random, DataType type, std::size_t count, std::byte* to) {
  for (std::size_t i = 0; i < count; ++i) write_random(random, type, to + i * size_of(type));
}

inline Bytes random_values(std::uint64_t seed, DataType type, std::size_t count) {
  Random random(seed);
  Bytes values(count * size_of(type));
  fill_random(random, type, count, values.data());
  return values;
}

}  // namespace trireme::shm::test
