// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/philox.h>

#include <gmock/gmock.h>

#include <array>
#include <set>

namespace trireme::data {
namespace {

TEST(Random, DependsOnEachOfItsFourNumbers) {
  std::set<std::uint32_t> firsts;
  for (std::uint64_t value = 0; value < 8; ++value) {
    firsts.insert(Random(value, 0, 0, 0).bits());
    firsts.insert(Random(0, value, 0, 0).bits());
    firsts.insert(Random(0, 0, value, 0).bits());
    firsts.insert(Random(0, 0, 0, value).bits());
  }
  EXPECT_EQ(firsts.size(), 4 * 7 + 1);
}

// Numbers from an implementation of Philox4x32-10 written after the paper. They must not change
// from release to release, for a run that resumes relies on its data.
TEST(Random, KeepsItsNumbersForEver) {
  Random random(1, 2, 3, 4);
  for (const std::uint32_t expected :
       {1931438239U, 1910831568U, 2399701733U, 2703207199U, 1875724506U}) {
    EXPECT_EQ(random.bits(), expected);
  }
}

TEST(Random, BelowIsUniformAndInRange) {
  Random random(0, 0, 0, 0);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70000; ++i) ++counts.at(static_cast<std::size_t>(random.below(7)));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 400);  // four standard deviations
  EXPECT_EQ(random.below(1), 0);
  const std::int64_t wide = std::int64_t{1} << 40;
  for (int i = 0; i < 100; ++i) {
    const std::int64_t drawn = random.below(wide);
    EXPECT_GE(drawn, 0);
    EXPECT_LT(drawn, wide);
  }
}

TEST(Random, UniformStaysBelowOne) {
  Random random(0, 0, 0, 0);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const float drawn = random.uniform();
    ASSERT_GE(drawn, 0);
    ASSERT_LT(drawn, 1);
    sum += drawn;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.012);
}

TEST(Random, NormalHasMeanZeroAndDeviationOne) {
  Random random(0, 0, 0, 0);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < 10000; ++i) {
    const double drawn = random.normal();
    sum += drawn;
    squares += drawn * drawn;
  }
  EXPECT_NEAR(sum / 10000, 0, 0.04);
  EXPECT_NEAR(squares / 10000, 1, 0.06);
}

}  // namespace
}  // namespace trireme::data
