// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/word_pattern.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <vector>

namespace trireme::data::detail {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> words(std::string_view expression, std::string_view text) {
  const WordPattern pattern(expression, "the test");
  WordScanner scanner(pattern);
  scanner.begin(text);
  std::vector<std::string> all;
  while (const auto word = scanner.next()) all.emplace_back(*word);
  return all;
}

TEST(WordPattern, CutsAsGpt2Does) {
  EXPECT_THAT(words(kGpt2Words, ""), IsEmpty());
  EXPECT_THAT(words(kGpt2Words, "Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(words(kGpt2Words, "we'll they've I'M it's"),
              ElementsAre("we", "'ll", " they", "'ve", " I", "'", "M", " it", "'s"));
  EXPECT_THAT(words(kGpt2Words, "a  b   \n c "), ElementsAre("a", " ", " b", "   \n", " c", " "));
  EXPECT_THAT(words(kGpt2Words, "x=12,5 (\u00BD)!"),
              ElementsAre("x", "=", "12", ",", "5", " (", "\u00BD", ")!"));
  EXPECT_THAT(words(kGpt2Words, "na\u00EFve \u65E5\u672C\u8A9E \u0661\u0662"),
              ElementsAre("na\u00EFve", " \u65E5\u672C\u8A9E", " \u0661\u0662"));
  EXPECT_THAT(words(kGpt2Words, "a\u3000\u3000b\u0085c"),
              ElementsAre("a", "\u3000", "\u3000", "b", "\u0085", "c"));
}

TEST(WordPattern, TakesUnicodesWhiteSpaceForSpace) {
  // U+180E is white space to PCRE2, and a sign to Unicode since 6.3.
  EXPECT_THAT(words(kGpt2Words, "a \u180E!"), ElementsAre("a", " \u180E!"));
  EXPECT_EQ(with_white_space(R"(\s+(?!\S)|[^\s\p{L}]|\\s|[[:alpha:]\s]|[]\s]|\S)"),
            R"([\t-\r\x{85}\p{Z}]+(?![^\t-\r\x{85}\p{Z}])|[^\t-\r\x{85}\p{Z}\p{L}]|\\s|)"
            R"([[:alpha:]\t-\r\x{85}\p{Z}]|[]\t-\r\x{85}\p{Z}]|[^\t-\r\x{85}\p{Z}])");
  EXPECT_EQ(with_white_space("[^]\\S]["), "[^]\\S][");
  EXPECT_EQ(with_white_space("a\\"), "a\\");
}

TEST(WordPattern, GivesWhatIsBetweenMatchesToo) {
  EXPECT_THAT(words(R"(\p{N})", "12ab3c"), ElementsAre("1", "2", "ab", "3", "c"));
  EXPECT_THAT(words("x*", "aaxxb"), ElementsAre("aa", "xx", "b"));
  EXPECT_THAT(words("(?<=a)b", "abb"), ElementsAre("a", "b", "b"));
}

TEST(WordPattern, GivesBytesThatAreNotUtf8AsWordsOfTheirOwn) {
  EXPECT_THAT(words(kGpt2Words,
                    "ab\xFF\xFE"
                    "cd \xC3"),
              ElementsAre("ab", "\xFF\xFE", "cd", " ", "\xC3"));
  EXPECT_THAT(words(kGpt2Words, "\xED\xA0\x80"), ElementsAre("\xED\xA0\x80"));
}

TEST(WordPattern, TakesLongWords) {
  for (const char* piece : {"a", " ", "\u00E9", "?"}) {
    std::string text;
    while (text.size() < (1U << 17)) text += piece;
    EXPECT_THAT(words(kGpt2Words, text), ElementsAre(text));
    // Groups use the stack of the compiled form, which is small.
    EXPECT_THAT(words("(?:a|b|.)+", text), ElementsAre(text));
  }
}

TEST(WordPattern, NamesWhatIsNoExpression) {
  EXPECT_THAT(test::message_of<DataError>([] { words("(a", "a"); }),
              AllOf(HasSubstr("the test: the regular expression (a cannot be used: "),
                    HasSubstr("parenthesis")));
}

TEST(WordPattern, SaysWhereAnExpressionGivesUp) {
  const std::string text(40, 'a');
  EXPECT_THAT(
      test::message_of<DataError>([&] { words("(?:a+a+)+(?:a+a+)+[bc]", text); }),
      AllOf(HasSubstr("the test: the regular expression fails at offset 0"), HasSubstr("limit")));
}

TEST(QuotedExpression, MeansTheTextItself) {
  const std::string text = "a.b*(c)[d]\\{e}^$|?+-/ \u00E9";
  EXPECT_THAT(words(quoted_expression(text), "x" + text + "y"), ElementsAre("x", text, "y"));
}

}  // namespace
}  // namespace trireme::data::detail
