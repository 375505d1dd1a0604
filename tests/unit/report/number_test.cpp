// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/number.h>

#include <trireme/base/text.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme::report {
namespace {

TEST(Number, ShortestGivesTheFewestDigitsThatReadBackAsTheSameFloat) {
  EXPECT_EQ(shortest(1.4686084F), "1.4686084");
  EXPECT_EQ(shortest(0.1F), "0.1");
  EXPECT_EQ(shortest(2.0F), "2");
  EXPECT_EQ(shortest(1e-5F), "1e-05");
  EXPECT_EQ(shortest(std::nanf("")), "nan");
  EXPECT_EQ(shortest(std::numeric_limits<float>::infinity()), "inf");
  for (float value : {3.1415927F, 0.30000001F, 1.17549435e-38F, 3.4028235e38F}) {
    EXPECT_EQ(parse_number<float>(shortest(value)), value);
  }
}

TEST(Number, ShortestOfADoubleReadsBackAsTheSameDouble) {
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(parse_number<double>(shortest(1e-300)), 1e-300);
}

TEST(Number, FixedKeepsItsDigits) {
  EXPECT_EQ(fixed(0.5, 2), "0.50");
  EXPECT_EQ(fixed(-1234.567, 1), "-1234.6");
  EXPECT_EQ(fixed(std::numeric_limits<double>::max(), 4).size(), 309U + 5U);
}

TEST(Number, ThousandsAreSetApart) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(60000), "60,000");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
  EXPECT_EQ(with_thousands(-123), "-123");
}

TEST(Number, BytesAndCountsTakeTheLargestUnitThatFits) {
  EXPECT_EQ(bytes_as_text(0), "0 B");
  EXPECT_EQ(bytes_as_text(1023), "1023 B");
  EXPECT_EQ(bytes_as_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_as_text(std::ldexp(3, 50)), "3072.0 TiB");
  EXPECT_EQ(count_as_text(12), "12");
  EXPECT_EQ(count_as_text(1500), "1.5 thousand");
  EXPECT_EQ(count_as_text(2.34e6), "2.3 million");
  EXPECT_EQ(count_as_text(3e15), "3000.0 thousand billion");
  EXPECT_EQ(count_as_text(1.7e308), "1.7e+296 thousand billion");
}

// They were `1000.0 thousand` and `1024.0 KiB`.
TEST(Number, TheUnitIsThatOfTheRoundedNumber) {
  EXPECT_EQ(count_as_text(999.4), "999");
  EXPECT_EQ(count_as_text(999.6), "1.0 thousand");
  EXPECT_EQ(count_as_text(999'949), "999.9 thousand");
  EXPECT_EQ(count_as_text(999'999), "1.0 million");
  EXPECT_EQ(bytes_as_text(1'048'575), "1.0 MiB");
  EXPECT_EQ(bytes_as_text(1023.7), "1.0 KiB");
}

TEST(Number, RoundedHasNoZeroesAtItsEnd) {
  EXPECT_EQ(rounded(2.0, 1), "2");
  EXPECT_EQ(rounded(0.5, 2), "0.5");
  EXPECT_EQ(rounded(10, 0), "10");
  EXPECT_EQ(rounded(-3.14159, 2), "-3.14");
}

TEST(Number, ClockTimeGrowsFromSecondsToHours) {
  EXPECT_EQ(clock_time(0), "0:00");
  EXPECT_EQ(clock_time(59.6), "1:00");
  EXPECT_EQ(clock_time(754), "12:34");
  EXPECT_EQ(clock_time(3723), "1:02:03");
  EXPECT_EQ(clock_time(-1), "-:--");
  EXPECT_EQ(clock_time(std::nan("")), "-:--");
}

TEST(Number, RateHasADigitAfterThePointOnlyWhileSmall) {
  EXPECT_EQ(rate(7.26), "7.3");
  EXPECT_EQ(rate(99.96), "100");
  EXPECT_EQ(rate(1832.4), "1,832");
  EXPECT_EQ(rate(std::numeric_limits<double>::infinity()), "-");
}

}  // namespace
}  // namespace trireme::report
