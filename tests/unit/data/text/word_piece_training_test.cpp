// SPDX-License-Identifier: Apache-2.0
// tests/parity/text compares with the trainer of the package `tokenizers`.
#include <trireme/data/text/word_piece_training.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <string>
#include <vector>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

WordPieceTrainingOptions options(std::int64_t size) {
  return {.vocabulary_size = size, .tokenizer = {.special_tokens = {"[UNK]"}}};
}

std::vector<std::string> train(const WordPieceTrainingOptions& options,
                               const std::vector<std::string>& texts) {
  WordPieceTrainer trainer(options);
  for (const std::string& text : texts) trainer.add(text);
  return trainer.train();
}

// By hand: hug 10, pug 5, pun 12, bun 4, hugs 5. The pair u g occurs 20 times, u n 16 times, then h
// ug 15 times.
TEST(WordPieceTrainer, MergesTheMostFrequentPairs) {
  std::string text;
  const auto repeat = [&](const std::string& word, int times) {
    for (int i = 0; i < times; ++i) text += word + " ";
  };
  repeat("hug", 10);
  repeat("pug", 5);
  repeat("pun", 12);
  repeat("Bun", 4);
  repeat("hugs", 5);
  EXPECT_THAT(train(options(16), {text}),
              ElementsAre("[UNK]", "b", "g", "h", "n", "p", "s", "u", "##u", "##n", "##g", "##s",
                          "##ug", "##un", "hug", "pun"));
}

TEST(WordPieceTrainer, IgnoresTheOrderOfTexts) {
  const std::vector<std::string> texts = {"the cat sat on the mat", "a dog saw the cat",
                                          "ab ab ba ba abba"};
  EXPECT_EQ(train(options(40), texts), train(options(40), {texts[2], texts[0], texts[1]}));
}

TEST(WordPieceTrainer, StopsWhereNoPairIsFrequentEnough) {
  WordPieceTrainingOptions rare = options(1000);
  rare.minimum_count = 3;
  EXPECT_THAT(train(rare, {"ab ab ab cd cd"}),
              ElementsAre("[UNK]", "a", "b", "c", "d", "##b", "##d", "ab"));
}

// a ##a ##a ##a ##a: the pair ##a ##a counts three times in a word, although it is merged twice.
TEST(WordPieceTrainer, MergesRepeatedTokensFromTheLeft) {
  EXPECT_THAT(train(options(6), {"aaaaa aaaaa aaaaa"}),
              ElementsAre("[UNK]", "a", "##a", "##aa", "##aaaa", "aaaaa"));
}

TEST(WordPieceTrainer, LeavesOutWordsWithRareCharactersAndLongOnes) {
  WordPieceTrainingOptions few = options(100);
  few.most_characters = 2;
  few.tokenizer.longest_word = 4;
  EXPECT_THAT(train(few, {"ab ab ab zb ababa"}), ElementsAre("[UNK]", "a", "b", "##b", "ab"));
}

TEST(WordPieceTrainer, KeepsCapitalsIfAsked) {
  WordPieceTrainingOptions cased = options(10);
  cased.tokenizer.lowercase = false;
  EXPECT_THAT(train(cased, {"Ab Ab"}), ElementsAre("[UNK]", "A", "b", "##b", "Ab"));
}

TEST(WordPieceTrainer, MakesAVocabularyThatTheTokenizerReads) {
  const test::TemporaryFolder folder;
  WordPieceTrainer trainer({.vocabulary_size = 30});
  trainer.add("playing played play, playing!");
  write_vocabulary(folder / "vocab.txt", trainer.train());
  const auto tokenizer = WordPieceTokenizer::read(folder / "vocab.txt");
  const auto tokens = tokenizer.encode("[CLS] Playing play! [SEP]");
  EXPECT_EQ(tokenizer.decode(tokens), "[CLS] playing play! [SEP]");
}

TEST(WordPieceTrainer, RefusesWhatGivesNoVocabulary) {
  EXPECT_THAT(message_of<UsageError>([] { WordPieceTrainer({.vocabulary_size = 0}); }),
              HasSubstr("a WordPieceTrainer whose vocabulary_size is 0"));
  EXPECT_THAT(message_of<UsageError>([] { WordPieceTrainer({.minimum_count = 0}); }),
              HasSubstr("minimum_count is 0"));
  EXPECT_THAT(message_of<UsageError>([] { WordPieceTrainer({.most_characters = 0}); }),
              HasSubstr("most_characters is 0"));
  EXPECT_THAT(message_of<UsageError>([] { WordPieceTrainer({.tokenizer = {.longest_word = 0}}); }),
              HasSubstr("longest word is 0"));
  EXPECT_THAT(message_of<DataError>([] { train(options(10), {" \n"}); }), HasSubstr("no words"));
  EXPECT_THAT(message_of<UsageError>([] { train(options(3), {"abc"}); }),
              HasSubstr("a vocabulary of 3 tokens, but special tokens and characters alone are 6"));
}

}  // namespace
}  // namespace trireme::data
