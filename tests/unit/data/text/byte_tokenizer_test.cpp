// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/byte_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/data/text/detail/special_tokens.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

TEST(ByteTokenizer, GivesBackEveryText) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const ByteTokenizer tokenizer;
  const Numbers tokens = tokenizer.encode(text);
  ASSERT_EQ(tokens.size(), 256U);
  EXPECT_EQ(tokens[0], 0);
  EXPECT_EQ(tokens[255], 255);
  EXPECT_EQ(tokenizer.decode(tokens), text);
  EXPECT_EQ(tokenizer.vocabulary_size(), 256);
}

TEST(ByteTokenizer, NumbersSpecialTokensAfterTheBytes) {
  const ByteTokenizer tokenizer({"<end>", "<begin>"});
  EXPECT_EQ(tokenizer.vocabulary_size(), 258);
  EXPECT_THAT(tokenizer.encode("<begin>a<end><e"), ElementsAre(257, 'a', 256, '<', 'e'));
  EXPECT_THAT(tokenizer.encode_plain("<end>"), ElementsAre('<', 'e', 'n', 'd', '>'));
  EXPECT_EQ(tokenizer.decode(Numbers{257, 'a', 256}), "<begin>a<end>");
  EXPECT_EQ(tokenizer.find("<end>"), 256);
  EXPECT_EQ(tokenizer.find("\xFF"), 255);
  EXPECT_EQ(tokenizer.find("ab"), std::nullopt);
}

TEST(ByteTokenizer, RefusesWhatIsNoToken) {
  const ByteTokenizer tokenizer;
  EXPECT_THAT(message_of<UsageError>([&] { tokenizer.decode(Numbers{1, 256}); }),
              HasSubstr("token 256 at place 1 is not in the vocabulary, which has 0 to 255"));
  EXPECT_THAT(message_of<UsageError>([&] { tokenizer.decode(Numbers{-1}); }),
              HasSubstr("token -1 at place 0"));
  EXPECT_THAT(message_of<UsageError>([] { ByteTokenizer({"<a>", "<a>"}); }),
              HasSubstr("the special token <a> is there twice"));
  EXPECT_THAT(message_of<UsageError>([] { ByteTokenizer({""}); }),
              HasSubstr("a special token without a name"));
}

using detail::SpecialToken;
using detail::SpecialTokens;

std::vector<std::pair<std::string, std::int64_t>> cut(const std::vector<SpecialToken>& tokens,
                                                      std::string_view text) {
  const SpecialTokens special(tokens);
  std::vector<std::pair<std::string, std::int64_t>> pieces;
  for (const auto& [piece, token] : special.cut(text))
    pieces.emplace_back(piece, token == nullptr ? -1 : token->number);
  return pieces;
}

TEST(SpecialTokens, AreTheLeftmostAndOfThoseTheLongest) {
  const std::vector<SpecialToken> tokens = {
      {.name = "ab", .number = 1}, {.name = "abc", .number = 2}, {.name = "cd", .number = 3}};
  EXPECT_THAT(cut(tokens, "xabcd"),
              ElementsAre(std::pair("x", -1), std::pair("abc", 2), std::pair("d", -1)));
  EXPECT_THAT(cut(tokens, "abab"), ElementsAre(std::pair("ab", 1), std::pair("ab", 1)));
  EXPECT_THAT(cut(tokens, "acb"), ElementsAre(std::pair("acb", -1)));
  EXPECT_TRUE(cut(tokens, "").empty());
  EXPECT_THAT(cut({}, "ab"), ElementsAre(std::pair("ab", -1)));
}

TEST(SpecialTokens, TakeTheSpaceNextToThem) {
  const std::vector<SpecialToken> tokens = {
      {.name = "<m>", .number = 1, .takes_space_before = true},
      {.name = "<n>", .number = 2, .takes_space_after = true}};
  EXPECT_THAT(cut(tokens, "a \u3000<m> b"),
              ElementsAre(std::pair("a", -1), std::pair(" \u3000<m>", 1), std::pair(" b", -1)));
  EXPECT_THAT(cut(tokens, " <n> \u00A0b"),
              ElementsAre(std::pair(" ", -1), std::pair("<n> \u00A0", 2), std::pair("b", -1)));
  EXPECT_THAT(cut(tokens, "<n> <m> \n"),
              ElementsAre(std::pair("<n> ", 2), std::pair("<m>", 1), std::pair(" \n", -1)));
  EXPECT_THAT(cut(tokens, "\xFF <m>"), ElementsAre(std::pair("\xFF", -1), std::pair(" <m>", 1)));
}

}  // namespace
}  // namespace trireme::data
