// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/exact_sum.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace trireme::detail {
namespace {

unsigned seed() { return static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()); }

double sum_of(const std::vector<float>& numbers) {
  ExactSumOfSquares sum;
  sum.add(std::span(numbers));
  return sum.value();
}

double sum_of(const std::vector<double>& numbers) {
  ExactSumOfSquares sum;
  sum.add(std::span(numbers));
  return sum.value();
}

TEST(ExactSumOfSquares, IsTheSquareOfOneNumberOfAnySize) {
  EXPECT_EQ(sum_of(std::vector<float>{}), 0);
  for (const float number : {0.0F, -0.0F, 1.0F, -3.0F, 0.1F, 1e-45F, 1e-38F, 3e38F, 16777215.0F}) {
    EXPECT_EQ(sum_of(std::vector<float>{number}), static_cast<double>(number) * number);
  }
  for (const double number : {1.0, -3.0, 0.1, 1e-150, 1e150, 9007199254740991.0}) {
    EXPECT_EQ(sum_of(std::vector<double>{number}), number * number);
  }
}

// Sums of whole numbers below 2^53 are exact in any way.
TEST(ExactSumOfSquares, IsExactWhereADoubleIs) {
  std::minstd_rand random(seed());
  std::vector<float> numbers(100'000);
  double expected = 0;
  for (float& number : numbers) {
    number = static_cast<float>(static_cast<int>(random() % 4001) - 2000);
    expected += static_cast<double>(number) * number;
  }
  EXPECT_EQ(sum_of(numbers), expected);
}

TEST(ExactSumOfSquares, KeepsWhatADoubleWouldLose) {
  // 2^60 + 2^10 times 1: a double that starts at 2^60 swallows each of them.
  std::vector<float> numbers(1025, 1.0F);
  numbers[0] = std::ldexp(1.0F, 30);
  EXPECT_EQ(sum_of(numbers), std::ldexp(1.0, 60) + 1024);
  // Just above half way between two doubles, by a term 2^-200 below.
  EXPECT_EQ(sum_of(std::vector<double>{std::ldexp(1.0, 27), 1.0, std::ldexp(1.0, -100)}),
            std::nextafter(std::ldexp(1.0, 54), 1e300) - 2 + 2);
  EXPECT_EQ(sum_of(std::vector<double>{std::ldexp(1.0, 27), std::sqrt(2.0)}),
            std::ldexp(1.0, 54) + 4 * static_cast<double>(2.0 < std::sqrt(2.0) * std::sqrt(2.0)));
}

TEST(ExactSumOfSquares, DoesNotDependOnOrderNorOnWhoAddsWhat) {
  std::mt19937 random(seed());
  std::uniform_real_distribution<float> exponent(-30, 30);
  std::vector<float> numbers(20'000);
  for (float& number : numbers) number = std::exp(exponent(random));
  const double expected = sum_of(numbers);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(numbers.begin(), numbers.end(), random);
    EXPECT_EQ(sum_of(numbers), expected);
    const std::size_t cut = random() % numbers.size();
    ExactSumOfSquares first;
    ExactSumOfSquares second;
    first.add(std::span(numbers).first(cut));
    second.add(std::span(numbers).subspan(cut));
    for (std::size_t i = 0; i < first.words().size(); ++i) first.words()[i] += second.words()[i];
    EXPECT_EQ(first.value(), expected);
  }
  EXPECT_EQ(sum_of(std::vector<double>(numbers.begin(), numbers.end())), expected);
}

TEST(ExactSumOfSquares, TellsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of(std::vector<float>{1, -infinity}), infinity);
  EXPECT_TRUE(std::isnan(sum_of(std::vector<float>{infinity, std::nanf("")})));
  EXPECT_TRUE(std::isnan(sum_of(std::vector<double>{std::nan("")})));
  ExactSumOfSquares sum;
  EXPECT_TRUE(sum.is_finite());
  sum.add(std::span<const float>(&infinity, 1));
  EXPECT_FALSE(sum.is_finite());
}

}  // namespace
}  // namespace trireme::detail
