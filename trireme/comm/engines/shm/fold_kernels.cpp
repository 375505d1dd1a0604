// SPDX-License-Identifier: Apache-2.0
// The loops that combine buffers, for the compiler to vectorise. Compiled once per instruction set,
// with TRIREME_FOLD_NAMESPACE and TRIREME_FOLD_NAME. Contraction into fused multiply-add is off, so
// that all sets compute the same bits. This file must not use shared inline functions: the linker
// could keep a copy that was compiled for a newer machine.
#include <trireme/comm/engines/shm/fold.h>

#include <cstdint>

namespace trireme::shm::TRIREME_FOLD_NAMESPACE {
namespace {

using std::size_t;
using std::uint16_t;
using std::uint32_t;

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};
struct Bool {
  std::uint8_t bits;
};
template <typename Real>
struct Complex {
  Real real, imaginary;
};

inline float to_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t to_bits(float value) { return __builtin_bit_cast(uint32_t, value); }

// These conversions have no branches and no denormal arithmetic. So they vectorise, and do not
// depend on the flush-to-zero mode of the thread.
inline float widen(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half.bits & 0x7fff);
  const uint32_t normal = (magnitude << 13) + (112U << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000U;  // infinity and NaN
  // A subnormal half is `magnitude` units of 2^-24, which is the last digit of a float near 0.5.
  const uint32_t subnormal = to_bits(to_float(0x3f000000U | magnitude) - 0.5f);
  const uint32_t value = magnitude >= 0x7c00 ? special : magnitude < 0x0400 ? subnormal : normal;
  return to_float(value | sign);
}

inline Half narrow_half(float value) {
  const uint32_t sign = (to_bits(value) >> 16) & 0x8000;
  const uint32_t magnitude = to_bits(value) & 0x7fffffff;
  const uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112U << 23)) >> 13;
  // The addition rounds to units of 2^-24, to the nearest and then even.
  const uint32_t subnormal = to_bits(to_float(magnitude) + 0.5f) - 0x3f000000U;
  const uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  const uint32_t bits = magnitude >= 0x47800000U  ? special
                        : magnitude < 0x38800000U ? subnormal
                                                  : normal;
  return {static_cast<uint16_t>(bits | sign)};
}

inline float widen(BFloat value) { return to_float(static_cast<uint32_t>(value.bits) << 16); }

inline BFloat narrow_bfloat(float value) {
  const uint32_t bits = to_bits(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000U ? 0x7fc0U : rounded)};
}

// The type of an element while it is combined. Integers wrap around, so they are unsigned here.
template <typename Stored>
struct Traits {
  using Accumulator = Stored;
  static Accumulator load(Stored value) { return value; }
  static Stored store(Accumulator value) { return value; }
};
template <>
struct Traits<Half> {
  using Accumulator = float;
  static float load(Half value) { return widen(value); }
  static Half store(float value) { return narrow_half(value); }
};
template <>
struct Traits<BFloat> {
  using Accumulator = float;
  static float load(BFloat value) { return widen(value); }
  static BFloat store(float value) { return narrow_bfloat(value); }
};

struct Sum {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a + b);
  }
  template <typename T>
  static T combine(Complex<T> a, Complex<T> b) = delete;  // is folded as twice as many reals
  static Bool combine(Bool a, Bool b) { return {static_cast<std::uint8_t>(a.bits | b.bits)}; }
};
struct Product {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a * b);
  }
  static uint16_t combine(uint16_t a, uint16_t b) {
    return static_cast<uint16_t>(static_cast<uint32_t>(a) * b);  // not by int, which can overflow
  }
  template <typename T>
  static Complex<T> combine(Complex<T> a, Complex<T> b) {
    // Not as a difference: GCC 12 would make vfmaddsub of that, whatever -ffp-contract says.
    return {a.real * b.real + -a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
  }
  static Bool combine(Bool a, Bool b) { return {static_cast<std::uint8_t>(a.bits & b.bits)}; }
};
template <typename T>
bool is_nan(T value) {
  if constexpr (__is_same(T, float) || __is_same(T, double)) {
    return __builtin_isnan(value);
  } else {
    return (void)value, false;
  }
}
struct Minimum {
  template <typename T>
  static T combine(T a, T b) {
    return (a < b || is_nan(a)) ? a : b;
  }
};
struct Maximum {
  template <typename T>
  static T combine(T a, T b) {
    return (a > b || is_nan(a)) ? a : b;
  }
};
struct And {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// The operations on a contribution before it is combined, and on the result.
struct Plain {
  template <typename A>
  static A before(A value, A) {
    return value;
  }
  template <typename A>
  static A after(A value, A) {
    return value;
  }
};
struct Divide {  // `number` is the count of ranks
  template <typename A>
  static A before(A value, A) {
    return value;
  }
  template <typename A>
  static A after(A value, A number) {
    return static_cast<A>(value / number);
  }
};
struct Multiply {  // `number` is the factor
  template <typename A>
  static A before(A value, A number) {
    return static_cast<A>(value * number);
  }
  template <typename A>
  static A after(A value, A) {
    return value;
  }
};

template <typename Stored, typename Op, typename Scale, int NumSources>
void fold_fixed(Stored* destination, const Stored* const* sources, size_t count,
                typename Traits<Stored>::Accumulator number) {
  using T = Traits<Stored>;
  const Stored* from[NumSources];
  for (int s = 0; s < NumSources; ++s) from[s] = sources[s];
  // The destination is one of the sources at most, at the same index: no iteration reads what
  // another one writes.
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < count; ++i) {
    auto value = Scale::before(T::load(from[0][i]), number);
    for (int s = 1; s < NumSources; ++s) {
      value = Op::combine(value, Scale::before(T::load(from[s][i]), number));
    }
    destination[i] = T::store(Scale::after(value, number));
  }
}

// Combines any number of sources. The accumulators of one tile stay in the first-level cache.
template <typename Stored, typename Op, typename Scale>
void fold_tiled(Stored* destination, const Stored* const* sources, int num_sources, size_t count,
                typename Traits<Stored>::Accumulator number) {
  using T = Traits<Stored>;
  constexpr size_t kTile = 512;
  typename T::Accumulator tile[kTile];
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t length = count - begin < kTile ? count - begin : kTile;
    const Stored* first = sources[0] + begin;
    for (size_t i = 0; i < length; ++i) tile[i] = Scale::before(T::load(first[i]), number);
    for (int s = 1; s < num_sources; ++s) {
      const Stored* next = sources[s] + begin;
      for (size_t i = 0; i < length; ++i) {
        tile[i] = Op::combine(tile[i], Scale::before(T::load(next[i]), number));
      }
    }
    for (size_t i = 0; i < length; ++i) {
      destination[begin + i] = T::store(Scale::after(tile[i], number));
    }
  }
}

template <typename Scale, typename Accumulator>
Accumulator number_for(int num_sources, double factor) {
  if constexpr (__is_same(Scale, Divide)) {
    (void)factor;
    return static_cast<Accumulator>(num_sources);
  } else if constexpr (__is_same(Scale, Multiply)) {
    (void)num_sources;
    return static_cast<Accumulator>(factor);
  } else {
    (void)num_sources, (void)factor;
    return Accumulator{};
  }
}

template <typename Stored, typename Op, typename Scale = Plain, int NumReals = 1>
void kernel(void* destination, const void* const* sources, int num_sources, size_t count,
            double factor) {
  auto* to = static_cast<Stored*>(destination);
  const auto* from = reinterpret_cast<const Stored* const*>(sources);
  const auto number = number_for<Scale, typename Traits<Stored>::Accumulator>(num_sources, factor);
  count *= NumReals;
  // Sums are what training spends its time on.
  if constexpr (__is_same(Op, Sum)) {
    if (num_sources == 2) return fold_fixed<Stored, Op, Scale, 2>(to, from, count, number);
    if (num_sources == 3) return fold_fixed<Stored, Op, Scale, 3>(to, from, count, number);
    if (num_sources == 4) return fold_fixed<Stored, Op, Scale, 4>(to, from, count, number);
  }
  fold_tiled<Stored, Op, Scale>(to, from, num_sources, count, number);
}

// Truncating division needs the sign that the unsigned sum has lost.
template <typename Signed, typename Unsigned>
struct SignedAverage {
  static void kernel(void* destination, const void* const* sources, int num_sources, size_t count,
                     double) {
    fold_tiled<Unsigned, Sum, Plain>(static_cast<Unsigned*>(destination),
                                     reinterpret_cast<const Unsigned* const*>(sources), num_sources,
                                     count, 0);
    auto* values = static_cast<Signed*>(destination);
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<Signed>(values[i] / static_cast<Signed>(num_sources));
    }
  }
};

}  // namespace

// Columns in the order of DataType, rows in the order of ReduceOp.
extern const FoldKernels kKernels;
const FoldKernels kKernels = {
    TRIREME_FOLD_NAME,
    {
        {kernel<double, Sum>, kernel<float, Sum>, kernel<Half, Sum>, kernel<BFloat, Sum>,
         kernel<std::uint8_t, Sum>, kernel<uint16_t, Sum>, kernel<uint32_t, Sum>,
         kernel<std::uint64_t, Sum>, kernel<std::uint8_t, Sum>, kernel<Bool, Sum>,
         kernel<float, Sum, Plain, 2>, kernel<double, Sum, Plain, 2>},
        {kernel<double, Sum, Divide>, kernel<float, Sum, Divide>, kernel<Half, Sum, Divide>,
         kernel<BFloat, Sum, Divide>, SignedAverage<std::int8_t, std::uint8_t>::kernel,
         SignedAverage<std::int16_t, uint16_t>::kernel,
         SignedAverage<std::int32_t, uint32_t>::kernel,
         SignedAverage<std::int64_t, std::uint64_t>::kernel, kernel<std::uint8_t, Sum, Divide>,
         nullptr, kernel<float, Sum, Divide, 2>, kernel<double, Sum, Divide, 2>},
        {kernel<double, Product>, kernel<float, Product>, kernel<Half, Product>,
         kernel<BFloat, Product>, kernel<std::uint8_t, Product>, kernel<uint16_t, Product>,
         kernel<uint32_t, Product>, kernel<std::uint64_t, Product>, kernel<std::uint8_t, Product>,
         kernel<Bool, Product>, kernel<Complex<float>, Product>, kernel<Complex<double>, Product>},
        {kernel<double, Minimum>, kernel<float, Minimum>, kernel<Half, Minimum>,
         kernel<BFloat, Minimum>, kernel<std::int8_t, Minimum>, kernel<std::int16_t, Minimum>,
         kernel<std::int32_t, Minimum>, kernel<std::int64_t, Minimum>,
         kernel<std::uint8_t, Minimum>, kernel<std::uint8_t, And>, nullptr, nullptr},
        {kernel<double, Maximum>, kernel<float, Maximum>, kernel<Half, Maximum>,
         kernel<BFloat, Maximum>, kernel<std::int8_t, Maximum>, kernel<std::int16_t, Maximum>,
         kernel<std::int32_t, Maximum>, kernel<std::int64_t, Maximum>,
         kernel<std::uint8_t, Maximum>, kernel<std::uint8_t, Or>, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, kernel<std::uint8_t, And>, kernel<uint16_t, And>,
         kernel<uint32_t, And>, kernel<std::uint64_t, And>, kernel<std::uint8_t, And>,
         kernel<std::uint8_t, And>, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, kernel<std::uint8_t, Or>, kernel<uint16_t, Or>,
         kernel<uint32_t, Or>, kernel<std::uint64_t, Or>, kernel<std::uint8_t, Or>,
         kernel<std::uint8_t, Or>, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, kernel<std::uint8_t, Xor>, kernel<uint16_t, Xor>,
         kernel<uint32_t, Xor>, kernel<std::uint64_t, Xor>, kernel<std::uint8_t, Xor>,
         kernel<std::uint8_t, Xor>, nullptr, nullptr},
        {kernel<double, Sum, Multiply>, kernel<float, Sum, Multiply>, kernel<Half, Sum, Multiply>,
         kernel<BFloat, Sum, Multiply>, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
         kernel<float, Sum, Multiply, 2>, kernel<double, Sum, Multiply, 2>},
    }};

}  // namespace trireme::shm::TRIREME_FOLD_NAMESPACE
