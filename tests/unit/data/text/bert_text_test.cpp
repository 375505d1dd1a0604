// SPDX-License-Identifier: Apache-2.0
// tests/parity/text compares with the package `tokenizers`; here is what it has no oracle for.
#include <trireme/data/text/detail/bert_text.h>

#include <gmock/gmock.h>

#include <vector>

namespace trireme::data::detail {
namespace {

using ::testing::ElementsAre;

const BertTextOptions kUncased = {
    .clean_text = true, .handle_chinese_chars = true, .strip_accents = true, .lowercase = true};

std::string normalized(std::string_view text, const BertTextOptions& options = kUncased) {
  return BertText(options).normalize(text);
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  for (std::string_view word = next_bert_word(text); !word.empty(); word = next_bert_word(text))
    result.emplace_back(word);
  return result;
}

TEST(BertText, IsLowerCaseWithoutAccents) {
  EXPECT_EQ(normalized("Na\u00EFve CAF\u00C9 \u0130stanbul"), "naive cafe istanbul");
  EXPECT_EQ(normalized("e\u0301A\u0328\u0301 \u039F\u03A3"), "ea \u03BF\u03C3");
  EXPECT_EQ(normalized("\u00C9\u0130", {.lowercase = true}), "\u00E9i\u0307");
  EXPECT_EQ(normalized("\u00C9a", {.strip_accents = true}), "Ea");
}

TEST(BertText, LeavesControlsOut) {
  EXPECT_EQ(normalized(std::string("a\0b\x1B\tc\r\n\x7F", 9)), "ab c  ");
  EXPECT_EQ(normalized("a\u00A0b\u2028c\u200Bd\uFFFDe\uE000"), "a b cde");
  EXPECT_EQ(normalized("a\u00A0b\x1B", {}), "a\u00A0b\x1B");
}

TEST(BertText, PutsSpacesAroundChineseCharacters) {
  EXPECT_EQ(normalized("a\u4E2Db\u3042"), "a \u4E2D b\u3042");
  EXPECT_EQ(normalized("\U00020000", {.handle_chinese_chars = true}), " \U00020000 ");
}

TEST(BertText, TakesHangulApart) { EXPECT_EQ(normalized("\uD55C"), "\u1112\u1161\u11AB"); }

TEST(BertText, LeavesBytesOutThatAreNotUtf8) {
  for (const BertTextOptions& options : {kUncased, BertTextOptions{}}) {
    EXPECT_EQ(normalized("a\xFFz\xC3 b\xE4\xB8", options), "az b");
    EXPECT_EQ(normalized("\xC3\x28\xA9\xED\xA0\x80", options), "(");
  }
}

TEST(BertText, GrowsWhereCharactersAreTakenApart) {
  std::string text;
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    text += "\u0390";  // three characters, and two of them are marks
    expected += "\u03B9";
  }
  EXPECT_EQ(normalized(text), expected);
}

TEST(BertWords, AreCutAtSpacesAndPunctuation) {
  EXPECT_THAT(
      words("  it's\u3000[MASK]...\u00BFno\u2019 \u00A0"),
      ElementsAre("it", "'", "s", "[", "MASK", "]", ".", ".", ".", "\u00BF", "no", "\u2019"));
  EXPECT_THAT(words("$5^`a+\u20AC"), ElementsAre("$", "5", "^", "`", "a", "+", "\u20AC"));
  EXPECT_THAT(words(""), ElementsAre());
  EXPECT_THAT(words(" \t\n"), ElementsAre());
}

}  // namespace
}  // namespace trireme::data::detail
