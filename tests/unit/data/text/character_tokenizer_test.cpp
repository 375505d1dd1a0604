// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/character_tokenizer.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

TEST(CharacterTokenizer, NumbersTheCharactersOfATextInTheirOrder) {
  const CharacterTokenizer tokenizer("hello\n\u00E9\U0001F600");
  EXPECT_EQ(tokenizer.vocabulary_size(), 7);
  EXPECT_THAT(tokenizer.encode("\neh\u00E9\U0001F600ol"), ElementsAre(0, 1, 2, 5, 6, 4, 3));
  EXPECT_EQ(tokenizer.encode_plain("hello"), tokenizer.encode("hello"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("\U0001F600hello\u00E9")), "\U0001F600hello\u00E9");
  EXPECT_EQ(tokenizer.find("\u00E9"), 5);
  EXPECT_EQ(tokenizer.find("x"), std::nullopt);
  EXPECT_EQ(tokenizer.find("he"), std::nullopt);
  EXPECT_EQ(tokenizer.find(""), std::nullopt);
}

TEST(CharacterTokenizer, IsReadAsItWasWritten) {
  const test::TemporaryFolder folder;
  const auto path = folder / "characters.json";
  const std::string text = "\"\\\n\t\x01 a\u00E9\U0001F600";
  CharacterTokenizer(text).write(path);
  const CharacterTokenizer tokenizer = CharacterTokenizer::read(path);
  EXPECT_EQ(tokenizer.encode(text), CharacterTokenizer(text).encode(text));
  test::write_file(path, R"({"characters": ["\n", " ", "!"]})");
  EXPECT_THAT(CharacterTokenizer::read(path).encode("! \n"), ElementsAre(2, 1, 0));
}

TEST(CharacterTokenizer, NamesWhatItDoesNotKnow) {
  const CharacterTokenizer tokenizer("abc");
  EXPECT_THAT(
      message_of<DataError>([&] { tokenizer.encode("ab\u00E9"); }),
      HasSubstr("the character '\u00E9' (U+00E9) at offset 2 is not in the vocabulary of 3"));
  EXPECT_THAT(message_of<DataError>([&] { tokenizer.encode("a\xFF"); }),
              HasSubstr("the text is not UTF-8 at offset 1"));
  EXPECT_THAT(message_of<DataError>([] { CharacterTokenizer("ab\xC3"); }),
              HasSubstr("the text is not UTF-8 at offset 2"));
  EXPECT_THAT(message_of<UsageError>([] { CharacterTokenizer(""); }), HasSubstr("an empty text"));
  EXPECT_THAT(message_of<UsageError>([&] { tokenizer.decode(Numbers{0, 3}); }),
              HasSubstr("token 3 at place 1"));
}

TEST(CharacterTokenizer, NamesADamagedFile) {
  const test::TemporaryFolder folder;
  const auto path = folder / "characters.json";
  const auto message = [&](std::string_view content) {
    test::write_file(path, content);
    return message_of<DataError>([&] { CharacterTokenizer::read(path); });
  };
  EXPECT_THAT(message_of<DataError>([&] { CharacterTokenizer::read(path); }),
              HasSubstr("no file " + path.string()));
  EXPECT_THAT(message("{\"characters\": [\"a\",\n]}"),
              AllOf(HasSubstr(path.string() + " is not JSON"), HasSubstr("line 2, column 1")));
  EXPECT_THAT(message("[]"), HasSubstr("is JSON, but not an object"));
  EXPECT_THAT(message("{}"), HasSubstr("has no list \"characters\""));
  EXPECT_THAT(message(R"({"characters": []})"), HasSubstr("has no list \"characters\""));
  EXPECT_THAT(message(R"({"characters": ["a", "bc"]})"),
              HasSubstr(path.string() + ": characters[1] is \"bc\", expected one character"));
  EXPECT_THAT(message(R"({"characters": ["b", "a"]})"), HasSubstr("characters[1] is \"a\""));
  EXPECT_THAT(message(R"({"characters": ["a", 7]})"), HasSubstr("characters[1] is 7"));
}

TEST(CharacterTokenizer, NamesAPlaceThatCannotBeWritten) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { CharacterTokenizer("a").write(folder / "nowhere/characters.json"); }),
              HasSubstr("nowhere/characters.json"));
}

}  // namespace
}  // namespace trireme::data
