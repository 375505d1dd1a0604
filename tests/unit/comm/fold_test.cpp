// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/fold.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/unit/comm/fold_reference.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using test::Bytes;
using test::decode;
using test::encode;
using test::Format;
using test::kBFloat;
using test::kHalf;
using test::random_values;
using test::read;

constexpr std::array<int, 10> kNumSources = {1, 2, 3, 4, 5, 6, 7, 8, 9, 64};
constexpr std::byte kUntouched{0xab};

// What the documentation says is defined.
bool should_be_defined(ReduceOp op, DataType type) {
  const bool is_complex = type == DataType::kComplex64 || type == DataType::kComplex128;
  const bool is_real = type <= DataType::kBFloat16;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kAverage:
      return type != DataType::kBool;
    case ReduceOp::kMinimum:
    case ReduceOp::kMaximum:
      return !is_complex;
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor:
      return !is_complex && !is_real;
    case ReduceOp::kPreMultipliedSum:
      return is_complex || is_real;
  }
  return false;
}

bool is_nan_element(DataType type, const std::byte* from, std::size_t index) {
  switch (type) {
    case DataType::kFloat64:
    case DataType::kComplex128:
      return std::isnan(read<double>(from, index));
    case DataType::kFloat32:
    case DataType::kComplex64:
      return std::isnan(read<float>(from, index));
    case DataType::kFloat16:
      return std::isnan(decode(kHalf, read<std::uint16_t>(from, index)));
    case DataType::kBFloat16:
      return std::isnan(decode(kBFloat, read<std::uint16_t>(from, index)));
    default:
      return false;
  }
}

// Returns the first element whose bits differ, or -1. Any NaN is as good as another: the payload of
// a sum of two is the processor's choice.
std::ptrdiff_t first_difference(DataType type, const std::byte* expected, const std::byte* actual,
                                std::size_t count) {
  if (count == 0 || std::memcmp(expected, actual, count * size_of(type)) == 0) return -1;
  const bool is_complex = type == DataType::kComplex64 || type == DataType::kComplex128;
  const std::size_t part = is_complex ? size_of(type) / 2 : size_of(type);
  for (std::size_t i = 0; i < count * size_of(type) / part; ++i) {
    if (std::memcmp(expected + i * part, actual + i * part, part) == 0) continue;
    if (is_nan_element(type, expected, i) && is_nan_element(type, actual, i)) continue;
    return static_cast<std::ptrdiff_t>(i * part / size_of(type));
  }
  return -1;
}

std::vector<const std::byte*> addresses(const std::vector<Bytes>& sources) {
  std::vector<const std::byte*> from;
  for (const Bytes& source : sources) from.push_back(source.data());
  return from;
}

std::vector<const void*> as_void(const std::vector<const std::byte*>& from) {
  return {from.begin(), from.end()};
}

struct Case {
  ReduceOp op;
  DataType type;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int op = 0; op < kNumReduceOps; ++op) {
    for (int type = 0; type < kNumDataTypes; ++type) {
      cases.push_back({static_cast<ReduceOp>(op), static_cast<DataType>(type)});
    }
  }
  return cases;
}

std::vector<Case> defined_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& each) { return !is_defined(each.op, each.type); });
  return cases;
}

class Folds : public ::testing::TestWithParam<Case> {
 protected:
  // Every instruction set against the reference; writes into memory of its own.
  static void compare(const std::vector<Bytes>& sources, std::size_t count, double factor) {
    const auto [op, type] = GetParam();
    const std::vector<const std::byte*> from = addresses(sources);
    const std::vector<const void*> inputs = as_void(from);
    const Bytes expected = test::fold_reference(from, count, type, {op, factor});
    for (const FoldKernels* kernels : runnable_kernels()) {
      Bytes result(expected.size() + 64, kUntouched);
      kernels->table[static_cast<int>(op)][static_cast<int>(type)](
          result.data(), inputs.data(), static_cast<int>(inputs.size()), count, factor);
      EXPECT_EQ(first_difference(type, expected.data(), result.data(), count), -1)
          << kernels->instruction_set << ", " << sources.size() << " sources of " << count;
      EXPECT_EQ(std::count(result.end() - 64, result.end(), kUntouched), 64)
          << kernels->instruction_set << " wrote beyond the end";
    }
  }
};

TEST_P(Folds, GivesTheBitsOfThePlainFoldForAnyNumberOfSourcesAndElements) {
  for (const int num_sources : kNumSources) {
    for (const std::size_t count : {0U, 1U, 3U, 31U, 64U, 511U, 512U, 513U, 2051U}) {
      std::vector<Bytes> sources;
      for (int s = 0; s < num_sources; ++s) {
        sources.push_back(
            random_values(static_cast<std::uint64_t>(s) + count * 100, GetParam().type, count));
      }
      compare(sources, count, 0.37);
    }
  }
}

TEST_P(Folds, GivesTheBitsOfThePlainFoldForAnyBits) {
  // Infinities, NaN, subnormals, the smallest and largest integers; bools are 0 or 1.
  const DataType type = GetParam().type;
  constexpr std::size_t kCount = 4001;
  for (const int num_sources : {2, 3, 4, 7}) {
    std::vector<Bytes> sources;
    for (int s = 0; s < num_sources; ++s) {
      Bytes any =
          random_values(static_cast<std::uint64_t>(s), DataType::kInt8, kCount * size_of(type));
      for (std::byte& byte : any) {
        if (type == DataType::kBool) byte &= std::byte{1};
      }
      sources.push_back(std::move(any));
    }
    compare(sources, kCount, -1.75);
  }
}

TEST_P(Folds, MayWriteOverAnyOfItsSources) {
  const auto [op, type] = GetParam();
  constexpr std::size_t kCount = 1037;
  for (const int num_sources : {1, 2, 3, 4, 6}) {
    for (int target = 0; target < num_sources; ++target) {
      for (const FoldKernels* kernels : runnable_kernels()) {
        std::vector<Bytes> sources;
        for (int s = 0; s < num_sources; ++s) {
          sources.push_back(random_values(static_cast<std::uint64_t>(s), type, kCount));
        }
        const std::vector<const std::byte*> from = addresses(sources);
        const Bytes expected = test::fold_reference(from, kCount, type, {op, 2.5});
        Bytes& result = sources[static_cast<std::size_t>(target)];
        kernels->table[static_cast<int>(op)][static_cast<int>(type)](
            result.data(), as_void(from).data(), num_sources, kCount, 2.5);
        EXPECT_EQ(first_difference(type, expected.data(), result.data(), kCount), -1)
            << kernels->instruction_set << " over source " << target << " of " << num_sources;
      }
    }
  }
}

TEST_P(Folds, WritesToSeveralDestinations) {
  const auto [op, type] = GetParam();
  for (const std::size_t count : {0U, 1U, 1023U, 20001U}) {
    std::vector<Bytes> sources;
    for (std::uint64_t s = 0; s < 3; ++s) sources.push_back(random_values(s, type, count));
    const std::vector<const std::byte*> from = addresses(sources);
    const Bytes expected = test::fold_reference(from, count, type, {op, 0.5});
    std::vector<Bytes> results(2, Bytes(expected.size() + 8, kUntouched));
    // The first destination is a source too, as in an all-reduce in place.
    const std::vector<void*> to = {sources[1].data(), results[0].data(), results[1].data()};
    fold(to, as_void(from), count, type, {op, 0.5});
    for (const void* result : to) {
      EXPECT_EQ(
          first_difference(type, expected.data(), static_cast<const std::byte*>(result), count), -1)
          << "of " << count;
    }
    for (const Bytes& result : results) {
      EXPECT_EQ(std::count(result.end() - 8, result.end(), kUntouched), 8);
    }
  }
}

TEST_P(Folds, TakesAnyAlignmentOfWholeElements) {
  const auto [op, type] = GetParam();
  constexpr std::size_t kCount = 700;
  std::vector<Bytes> sources;
  for (std::uint64_t s = 0; s < 4; ++s) sources.push_back(random_values(s, type, kCount + 4));
  std::vector<const std::byte*> from = addresses(sources);
  for (std::size_t s = 0; s < 4; ++s) from[s] += s * size_of(type);
  const Bytes expected = test::fold_reference(from, kCount, type, {op, 0.5});
  Bytes result(expected.size() + size_of(type));
  void* const to = result.data() + size_of(type);
  fold({&to, 1}, as_void(from), kCount, type, {op, 0.5});
  EXPECT_EQ(first_difference(type, expected.data(), static_cast<std::byte*>(to), kCount), -1);
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  std::string name = join_message(name_of(info.param.op), "_", name_of(info.param.type));
  std::replace_if(name.begin(), name.end(), [](char each) { return std::isalnum(each) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Defined, Folds, ::testing::ValuesIn(defined_cases()), name_of_case);

TEST(Fold, IsDefinedWhereTheDocumentationSaysSo) {
  for (const auto [op, type] : all_cases()) {
    EXPECT_EQ(is_defined(op, type), should_be_defined(op, type))
        << name_of(op) << " of " << name_of(type);
    for (const FoldKernels* kernels : runnable_kernels()) {
      EXPECT_EQ(kernels->table[static_cast<int>(op)][static_cast<int>(type)] != nullptr,
                should_be_defined(op, type))
          << kernels->instruction_set << ": " << name_of(op) << " of " << name_of(type);
    }
  }
}

// Folds lists of numbers, one list a source.
template <typename T>
std::vector<T> fold_values(const std::vector<std::vector<T>>& sources, DataType type,
                           Reduction reduction) {
  std::vector<const void*> from;
  for (const std::vector<T>& source : sources) from.push_back(source.data());
  std::vector<T> result(sources[0].size());
  void* const to = result.data();
  fold({&to, 1}, from, result.size(), type, reduction);
  return result;
}

using ::testing::ElementsAre;

TEST(Fold, WrapsIntegersAround) {
  EXPECT_THAT(fold_values<std::int8_t>({{127, -128}, {1, -1}}, DataType::kInt8, {}),
              ElementsAre(-128, 127));
  EXPECT_THAT(fold_values<std::uint8_t>({{200, 255}, {100, 1}}, DataType::kUInt8, {}),
              ElementsAre(44, 0));
  EXPECT_THAT(fold_values<std::int16_t>({{-32768, 300}, {-32768, 300}}, DataType::kInt16,
                                        {ReduceOp::kProduct}),
              ElementsAre(0, 24464));
  constexpr std::int32_t kInt = std::numeric_limits<std::int32_t>::max();
  EXPECT_THAT(fold_values<std::int32_t>({{kInt}, {1}}, DataType::kInt32, {}),
              ElementsAre(-kInt - 1));
  constexpr std::int64_t kLong = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(fold_values<std::int64_t>({{kLong, kLong}, {1, 2}}, DataType::kInt64, {}),
              ElementsAre(-kLong - 1, -kLong));
}

TEST(Fold, TruncatesAveragesOfIntegersTowardsZero) {
  EXPECT_THAT(fold_values<std::int32_t>({{-1, -3, 3, 7}, {-2, -4, 4, -14}}, DataType::kInt32,
                                        {ReduceOp::kAverage}),
              ElementsAre(-1, -3, 3, -3));
  EXPECT_THAT(fold_values<std::int64_t>({{-5}, {-5}, {-1}}, DataType::kInt64, {ReduceOp::kAverage}),
              ElementsAre(-3));
  EXPECT_THAT(fold_values<std::uint8_t>({{7}, {8}}, DataType::kUInt8, {ReduceOp::kAverage}),
              ElementsAre(7));
}

TEST(Fold, GivesNanWhereAnyContributionIsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct,
                            ReduceOp::kMinimum, ReduceOp::kMaximum}) {
    for (const float value :
         fold_values<float>({{nan, 1, 2}, {1, nan, 2}, {1, 2, nan}}, DataType::kFloat32, {op})) {
      EXPECT_TRUE(std::isnan(value)) << name_of(op);
    }
  }
}

TEST(Fold, TakesSumsFromLeftToRight) {
  // From the right, or in pairs, the small ones would survive.
  EXPECT_THAT(fold_values<float>({{0x1p24F}, {1}, {1}, {-0x1p24F}}, DataType::kFloat32, {}),
              ElementsAre(0));
  EXPECT_THAT(fold_values<float>({{1}, {1}, {0x1p24F}, {-0x1p24F}}, DataType::kFloat32, {}),
              ElementsAre(2));
}

TEST(Fold, RoundsHalvesOnceAtTheEnd) {
  // 2048 + 1 + 1 in half precision at every step would stay 2048.
  const auto half = [](double value) { return encode(kHalf, value); };
  EXPECT_THAT(fold_values<std::uint16_t>(
                  {{half(2048), half(65504)}, {half(1), half(65504)}, {half(1), half(-65504)}},
                  DataType::kFloat16, {}),
              ElementsAre(half(2050), half(65504)));
}

TEST(Fold, RoundsToTheNearestAndThenToEven) {
  const auto half = [](double value) { return encode(kHalf, value); };
  const auto bfloat = [](double value) { return encode(kBFloat, value); };
  // One half of the last digit up from an even and from an odd number, and a little more of it.
  EXPECT_THAT(fold_values<std::uint16_t>({{half(2048), half(2050), half(2048), half(65504)},
                                          {half(1), half(1), half(1.001), half(16)}},
                                         DataType::kFloat16, {}),
              ElementsAre(0x6800, 0x6802, 0x6801, 0x7c00));
  EXPECT_THAT(fold_values<std::uint16_t>({{bfloat(256), bfloat(258), bfloat(256)},
                                          {bfloat(1), bfloat(1), bfloat(1.0078125)}},
                                         DataType::kBFloat16, {}),
              ElementsAre(0x4380, 0x4382, 0x4381));
  // The smallest subnormal of half precision, halved, and one and a half of it.
  EXPECT_THAT(fold_values<std::uint16_t>({{1, 3, 0x0400}}, DataType::kFloat16,
                                         {ReduceOp::kPreMultipliedSum, 0.5}),
              ElementsAre(0, 2, 0x0200));
}

class ShortFloats : public ::testing::TestWithParam<DataType> {
 protected:
  static Format format() { return GetParam() == DataType::kFloat16 ? kHalf : kBFloat; }
  static std::vector<std::uint16_t> all_patterns() {
    std::vector<std::uint16_t> patterns(65536);
    for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
    return patterns;
  }
  static std::vector<std::uint16_t> run(const FoldKernels& kernels, ReduceOp op,
                                        const std::vector<std::vector<std::uint16_t>>& sources,
                                        double factor = 1) {
    std::vector<const void*> from;
    for (const auto& source : sources) from.push_back(source.data());
    std::vector<std::uint16_t> result(sources[0].size());
    kernels.table[static_cast<int>(op)][static_cast<int>(GetParam())](
        result.data(), from.data(), static_cast<int>(from.size()), result.size(), factor);
    return result;
  }
};

TEST_P(ShortFloats, ComeBackFromSinglePrecisionAsTheyWere) {
  const std::vector<std::uint16_t> patterns = all_patterns();
  for (const FoldKernels* kernels : runnable_kernels()) {
    const std::vector<std::uint16_t> result = run(*kernels, ReduceOp::kSum, {patterns});
    for (const std::uint16_t bits : patterns) {
      if (std::isnan(decode(format(), bits))) {
        ASSERT_TRUE(std::isnan(decode(format(), result[bits]))) << bits;
      } else {
        ASSERT_EQ(result[bits], bits) << kernels->instruction_set;
      }
    }
  }
}

TEST_P(ShortFloats, AreAddedAndScaledLikeTheReferenceForEveryPattern) {
  const std::vector<std::uint16_t> patterns = all_patterns();
  const std::uint16_t infinity = format().infinity;
  const auto one_below = static_cast<std::uint16_t>(infinity - 1);
  std::vector<std::uint16_t> others = {0,
                                       0x8000,
                                       1,
                                       0x8001,
                                       2,
                                       0x7f,
                                       0x80,
                                       0x3ff,
                                       0x400,
                                       0x401,
                                       infinity,
                                       one_below,
                                       static_cast<std::uint16_t>(one_below | 0x8000),
                                       static_cast<std::uint16_t>(infinity | 0x8000)};
  for (std::uint16_t bits = 0x0123; bits < infinity;
       bits = static_cast<std::uint16_t>(bits + 0x0777))
    others.push_back(bits);
  const auto check = [&](ReduceOp op, const std::vector<std::vector<std::uint16_t>>& sources,
                         double factor, const std::string& what) {
    std::vector<const std::byte*> from;
    for (const auto& source : sources) {
      from.push_back(reinterpret_cast<const std::byte*>(source.data()));
    }
    const Bytes expected = test::fold_reference(from, patterns.size(), GetParam(), {op, factor});
    for (const FoldKernels* kernels : runnable_kernels()) {
      const std::vector<std::uint16_t> result = run(*kernels, op, sources, factor);
      const std::ptrdiff_t at =
          first_difference(GetParam(), expected.data(),
                           reinterpret_cast<const std::byte*>(result.data()), patterns.size());
      ASSERT_EQ(at, -1) << kernels->instruction_set << ", " << what;
    }
  };
  for (const std::uint16_t other : others) {
    check(ReduceOp::kSum, {patterns, std::vector<std::uint16_t>(patterns.size(), other)}, 1,
          join_message("plus 0x", std::hex, other));
  }
  for (const double factor : {0.5, 1 / 3., 0x1p-10, 1e-4, 3.1e-7, 1.0009765625, 40000., -7e-3}) {
    check(ReduceOp::kPreMultipliedSum, {patterns}, factor, "times " + std::to_string(factor));
  }
}

INSTANTIATE_TEST_SUITE_P(Both, ShortFloats,
                         ::testing::Values(DataType::kFloat16, DataType::kBFloat16),
                         [](const auto& each) { return std::string(name_of(each.param)); });

TEST(ShortFloatReference, IsRight) {
  // The reference itself, against values from the standard.
  EXPECT_EQ(decode(kHalf, 0x3c00), 1);
  EXPECT_EQ(decode(kHalf, 0x7bff), 65504);
  EXPECT_EQ(decode(kHalf, 0x0001), 0x1p-24);
  EXPECT_EQ(decode(kHalf, 0x0400), 0x1p-14);
  EXPECT_EQ(encode(kHalf, 65519.99), 0x7bff);
  EXPECT_EQ(encode(kHalf, 65520), 0x7c00);
  EXPECT_EQ(encode(kHalf, 0x1p-25), 0);
  EXPECT_EQ(encode(kHalf, -0x1.8p-25), 0x8001);
  EXPECT_EQ(encode(kHalf, 0x1.ff8p-15), 0x03ff);
  EXPECT_EQ(decode(kBFloat, 0x3f80), 1);
  EXPECT_EQ(encode(kBFloat, std::numeric_limits<float>::max()), 0x7f80);
  for (int bits = 0; bits < 0x7c00; ++bits) {
    ASSERT_EQ(encode(kHalf, decode(kHalf, static_cast<std::uint16_t>(bits))), bits);
  }
  for (int bits = 0; bits < 0x7f80; ++bits) {
    ASSERT_EQ(encode(kBFloat, decode(kBFloat, static_cast<std::uint16_t>(bits))), bits);
  }
}

}  // namespace
}  // namespace trireme::shm
