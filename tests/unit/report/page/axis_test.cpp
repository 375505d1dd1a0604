// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/axis.h>

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace trireme::report {
namespace {

using testing::ElementsAre;

std::vector<std::string> labels_of(const Axis& axis) {
  std::vector<std::string> labels;
  for (const Tick& tick : axis.ticks()) labels.push_back(tick.label);
  return labels;
}

TEST(Axis, LinearTicksAreRoundAndReachAroundTheValues) {
  const Axis axis = Axis::linear({0.13, 0.87}, 5);
  EXPECT_THAT(labels_of(axis), ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_EQ(axis.place(axis.range().low), 0);
  EXPECT_EQ(axis.place(axis.range().high), 1);
  EXPECT_THAT(labels_of(Axis::linear({0, 3000}, 5)), ElementsAre("0", "1,000", "2,000", "3,000"));
  EXPECT_THAT(labels_of(Axis::linear({-1, 1}, 5)), ElementsAre("-1.0", "-0.5", "0", "0.5", "1.0"));
}

TEST(Axis, AConstantHasRoomAroundIt) {
  for (const double value : {0.0, 0.1, 5.0, -3.0}) {
    const Axis axis = Axis::linear({value, value}, 5);
    EXPECT_LE(axis.range().low, value);
    EXPECT_GT(axis.range().high, value);
    EXPECT_GE(axis.ticks().size(), 2U);
  }
  EXPECT_EQ(Axis::linear({0, 0}, 5).range().low, 0);
}

TEST(Axis, NeverHasManyTicks) {
  for (int index = 0; index < 88; ++index) {
    const double high = 1e-6 * std::pow(1.37, index);
    EXPECT_LE(Axis::linear({0, high}, 5).ticks().size(), 7U) << high;
    EXPECT_LE(Axis::logarithmic({high / 12345, high}).ticks().size(), 8U) << high;
    EXPECT_LE(Axis::steps({1, std::ceil(high)}, 5).ticks().size(), 7U) << high;
  }
}

TEST(Axis, LogarithmicTicksArePowersOfTen) {
  const Axis axis = Axis::logarithmic({0.001, 1000});
  EXPECT_THAT(labels_of(axis), ElementsAre("0.001", "0.01", "0.1", "1", "10", "100", "1e+03"));
  EXPECT_NEAR(axis.place(1), 0.5, 1e-12);
  EXPECT_THAT(labels_of(Axis::logarithmic({1, 100})),
              ElementsAre("1", "2", "5", "10", "20", "50", "100"));
}

TEST(Axis, StepsAreWholeAndShortWhereTheyAreMany) {
  EXPECT_THAT(labels_of(Axis::steps({1, 3}, 5)), ElementsAre("1", "2", "3"));
  EXPECT_THAT(labels_of(Axis::steps({1, 100}, 5)), ElementsAre("20", "40", "60", "80", "100"));
  EXPECT_THAT(labels_of(Axis::steps({1, 90'000}, 5)), ElementsAre("20k", "40k", "60k", "80k"));
  EXPECT_THAT(labels_of(Axis::steps({1, 4'000'000}, 5)), ElementsAre("1M", "2M", "3M", "4M"));
  const Axis single = Axis::steps({7, 7}, 5);
  EXPECT_THAT(labels_of(single), ElementsAre("7"));
  EXPECT_EQ(single.place(7), 0.5);
}

TEST(Scale, MakesNumbersShort) {
  EXPECT_EQ(scale_of(Unit::kSeconds, 2).name, "s");
  EXPECT_EQ(scale_of(Unit::kSeconds, 0.02).name, "ms");
  EXPECT_EQ(scale_of(Unit::kSeconds, 2e-6).name, "µs");
  EXPECT_EQ(scale_of(Unit::kBytes, 3e9).name, "GiB");
  EXPECT_EQ(scale_of(Unit::kBytes, 3e6).name, "MiB");
  EXPECT_EQ(scale_of(Unit::kShare, 1).factor, 100);
  EXPECT_EQ(scale_of(Unit::kNumber, 2).name, "");
  EXPECT_EQ(scale_of(Unit::kNumber, 0).name, "");
  const Scale small = scale_of(Unit::kNumber, 3e-4);
  EXPECT_EQ(small.name, "×10<sup>−6</sup>");
  EXPECT_NEAR(3e-4 * small.factor, 300, 1e-9);
  EXPECT_EQ(scale_of(Unit::kNumber, 65536.0 * 32).name, "×10<sup>6</sup>");
}

TEST(Significant, IsWhatJsonTakes) {
  EXPECT_EQ(significant(0.123456789, 5), "0.12346");
  EXPECT_EQ(significant(1234567, 12), "1234567");
  EXPECT_EQ(significant(std::nan(""), 5), "null");
  EXPECT_EQ(significant(std::numeric_limits<double>::infinity(), 5), "null");
}

}  // namespace
}  // namespace trireme::report
