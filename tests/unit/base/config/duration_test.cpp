// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/duration.h>

#include <gtest/gtest.h>

namespace trireme::config {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1'000'000'000;

std::optional<std::int64_t> milliseconds_of(const char* text) {
  const auto duration = parse_duration(text);
  return duration ? whole_periods(*duration, kMillisecond) : std::nullopt;
}

TEST(Duration, HasANumberAndAUnit) {
  EXPECT_EQ(milliseconds_of("30 s"), 30'000);
  EXPECT_EQ(milliseconds_of(" 30s "), 30'000);
  EXPECT_EQ(milliseconds_of("1.5 min"), 90'000);
  EXPECT_EQ(milliseconds_of("0.1 s"), 100);
  EXPECT_EQ(milliseconds_of("-2 h"), -7'200'000);
  EXPECT_EQ(milliseconds_of("1 d"), 86'400'000);
  EXPECT_EQ(milliseconds_of("3000 us"), 3);
}

TEST(Duration, RefusesOtherText) {
  for (const char* text :
       {"", "30", "s", "30 sec", "30 s s", "1,5 h", "inf s", "nan s", "0x10 s"}) {
    EXPECT_EQ(parse_duration(text), std::nullopt) << text;
  }
}

TEST(Duration, RefusesWhatIsNoWholeNumberOfPeriodsOrTooMany) {
  EXPECT_EQ(milliseconds_of("0.5 us"), std::nullopt);
  EXPECT_EQ(milliseconds_of("1.0005 s"), std::nullopt);
  EXPECT_EQ(milliseconds_of("1e30 h"), std::nullopt);
}

TEST(Duration, IsWrittenInTheLargestUnitThatIsWhole) {
  EXPECT_EQ(duration_text(std::int64_t{90'000}, kMillisecond), "90 s");
  EXPECT_EQ(duration_text(std::int64_t{1'500}, kMillisecond), "1500 ms");
  EXPECT_EQ(duration_text(std::int64_t{7'200}, kSecond), "2 h");
  EXPECT_EQ(duration_text(std::int64_t{0}, kMillisecond), "0 ms");
  EXPECT_EQ(duration_text(0.25, kSecond), "0.25 s");
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{-59'999},
                                   std::int64_t{31'536'000'000}, std::int64_t{1} << 53}) {
    const auto back = parse_duration(duration_text(count, kMillisecond));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(whole_periods(*back, kMillisecond), count);
  }
}

}  // namespace
}  // namespace trireme::config
