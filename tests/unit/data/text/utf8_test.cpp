// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/utf8.h>

#include <trireme/data/text/detail/byte_pairs.h>

#include <gtest/gtest.h>

#include <set>

namespace trireme::data::detail {
namespace {

TEST(Utf8, ReadsAndWritesEveryCharacter) {
  for (char32_t character = 0; character <= 0x10FFFF; ++character) {
    if (character >= 0xD800 && character < 0xE000) continue;
    const std::string text = utf8_of(character);
    const CodePoint first = first_character(text + "x");
    const CodePoint last = last_character("\xF0" + text);
    ASSERT_EQ(first.value, character);
    ASSERT_EQ(first.bytes, text.size());
    ASSERT_EQ(last.value, character);
    ASSERT_EQ(last.bytes, text.size());
  }
}

TEST(Utf8, RefusesWhatIsNoCharacter) {
  for (const std::string_view text :
       {"", "\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xE2\x82",
        "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF0\x9F\x98", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(first_character(text).bytes, 0U) << text;
    EXPECT_EQ(last_character(text).bytes, text.ends_with('(') ? 1U : 0U) << text;
  }
  EXPECT_EQ(last_character("\x80\x80\x80\x80\x80").bytes, 0U);
  EXPECT_EQ(last_character("\xC3\xA9\xA9").bytes, 0U);
}

TEST(Utf8, CountsStretches) {
  EXPECT_EQ(valid_bytes("a\xC3\xA9z"), 4U);
  EXPECT_EQ(valid_bytes("a\xC3\xA9\xFFz"), 3U);
  EXPECT_EQ(valid_bytes("\xFF"), 0U);
  EXPECT_EQ(invalid_bytes("\xFF\xC3\xE2\x82z"), 4U);
  EXPECT_EQ(invalid_bytes("z\xFF"), 0U);
  EXPECT_EQ(invalid_bytes("\xFF"), 1U);
}

TEST(Utf8, KnowsWhiteSpace) {
  int count = 0;
  for (char32_t character = 0; character <= 0x10FFFF; ++character)
    count += is_white_space(character) ? 1 : 0;
  EXPECT_EQ(count, 25);
  EXPECT_TRUE(is_white_space(0x85));
  EXPECT_FALSE(is_white_space(0x180E));
  EXPECT_FALSE(is_white_space(0x200B));
}

TEST(Utf8, DescribesCharacters) {
  EXPECT_EQ(describe_character(U'a'), "'a' (U+0061)");
  EXPECT_EQ(describe_character(U'\n'), "U+000A");
  EXPECT_EQ(describe_character(0x1F600), "'\xF0\x9F\x98\x80' (U+1F600)");
}

TEST(ByteCharacters, AreGpt2s) {
  const auto& characters = byte_characters();
  EXPECT_EQ(std::set<std::string>(characters.begin(), characters.end()).size(), 256U);
  EXPECT_EQ(characters['!'], "!");
  EXPECT_EQ(characters['~'], "~");
  EXPECT_EQ(characters[' '], "\u0120");
  EXPECT_EQ(characters['\n'], "\u010A");
  EXPECT_EQ(characters[0], "\u0100");
  EXPECT_EQ(characters[0x7F], "\u0121");
  EXPECT_EQ(characters[0xA0], "\u0142");
  EXPECT_EQ(characters[0xAD], "\u0143");
  EXPECT_EQ(characters[0xA1], "\u00A1");
  EXPECT_EQ(characters[0xFF], "\u00FF");
}

TEST(ByteCharacters, GoBothWays) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  EXPECT_EQ(bytes_of_token(token_of_bytes(bytes)), bytes);
  EXPECT_EQ(token_of_bytes(" caf\xC3\xA9"), "\u0120caf\u00C3\u00A9");
  // A character that stands for no byte: the token is what it says.
  EXPECT_EQ(bytes_of_token("<\uFF5Cend\uFF5C>"), "<\uFF5Cend\uFF5C>");
  EXPECT_EQ(bytes_of_token("a b"), "a b");
}

}  // namespace
}  // namespace trireme::data::detail
