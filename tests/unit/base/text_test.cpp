// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/text.h>

#include <gmock/gmock.h>
#include <tests/other_locale.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <sstream>

namespace trireme {
namespace {

using testing::Optional;

TEST(Text, IsWrittenAndReadWithoutTheGlobalLocale) {
  const test::CommaLocale locale;
  TextWriter writer;
  writer << 12000 << " " << 0.5;
  EXPECT_EQ(writer.str(), "12000 0.5");
  TextReader reader("12000 0.5");
  int integer = 0;
  double number = 0;
  reader >> integer >> number;
  EXPECT_EQ(integer, 12000);
  EXPECT_EQ(number, 0.5);
}

TEST(Text, OfThisProgramIsUnderAnotherLocaleWhereItIsAskedFor) {
  if (std::getenv("TRIREME_OTHER_LOCALE") == nullptr) GTEST_SKIP() << "not asked for";
  std::ostringstream text;
  text << 12000 << " " << 0.5;
  EXPECT_EQ(text.str(), "12.000 0,5");
}

TEST(Text, NumbersReadBackAsTheSame) {
  for (const double number :
       {0.1, 1.0, 1e-300, -0.0, std::numeric_limits<double>::max(),
        std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(parse_number<double>(shortest_text(number)), Optional(number));
  }
  EXPECT_EQ(shortest_text(0.1F), "0.1");
  EXPECT_EQ(shortest_text(0.5), "0.5");
}

TEST(Text, ANumberIsAllOfTheText) {
  EXPECT_THAT(parse_number<int>("-12"), Optional(-12));
  for (const char* text : {"", " 1", "1 ", "+1", "1,000", "1.5", "0x1", "99999999999"}) {
    EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<std::uint8_t>("256"), std::nullopt);
  EXPECT_EQ(parse_number<double>("0,5"), std::nullopt);
}

TEST(Text, LettersAreThoseOfAscii) {
  EXPECT_EQ(ascii_lower('I'), 'i');
  EXPECT_EQ(ascii_lower('_'), '_');
  EXPECT_EQ(ascii_lower('\xc4'), '\xc4');  // a capital letter in Latin-1
  EXPECT_TRUE(is_ascii_alphanumeric('Z'));
  EXPECT_TRUE(is_ascii_alphanumeric('0'));
  EXPECT_FALSE(is_ascii_alphanumeric('-'));
  EXPECT_FALSE(is_ascii_alphanumeric('\xe4'));
}

TEST(Text, ThatIsPrintableHasNoControlCharacters) {
  EXPECT_EQ(printable("a\x1b[2Jb\nc\x7f"), "a?[2Jb?c?");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "?2J");  // the same command to a terminal in one character
  EXPECT_EQ(printable("Größe …"), "Größe …");
  EXPECT_EQ(printable("\xc2"), "\xc2");
}

TEST(Text, OfAListHasSeparators) {
  EXPECT_EQ(list_text(std::vector<int>{}), "");
  EXPECT_EQ(list_text(std::vector<int>{1000, 2}), "1000, 2");
  EXPECT_EQ(list_text(std::vector<std::string>{"", "b"}, ";"), ";b");
  EXPECT_EQ(list_text(std::vector<std::string>{"ab", "c"}, " ", &std::string::size), "2 1");
}

TEST(Text, ForAShellLeavesPlainWordsAndProtectsOthers) {
  EXPECT_EQ(shell_quoted("./a-b_c.d/e=f"), "./a-b_c.d/e=f");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("a b"), "'a b'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
}

TEST(Text, OfATimeIsInUtc) {
  EXPECT_EQ(utc_text(0), "1970-01-01 00:00:00 UTC");
  EXPECT_EQ(utc_text(1769851800), "2026-01-31 09:30:00 UTC");
}

}  // namespace
}  // namespace trireme
