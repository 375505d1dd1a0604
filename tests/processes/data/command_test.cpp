// SPDX-License-Identifier: Apache-2.0
// `trireme data vocabulary` and `trireme data bert` as a user types them.
#include <trireme/data/text/bert_pairs.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <filesystem>
#include <string>

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TextDataCommand : public testing::Test {
 protected:
  TextDataCommand() {
    std::string text;
    for (int document = 0; document < 6; ++document) {
      for (int sentence = 0; sentence < 8; ++sentence)
        text += "Sentence " + std::to_string(sentence) + " of document number nine.\n";
      text += "\n\n";
    }
    text_ = folder_.write("text.txt", text).string();
  }

  Finished data(const std::string& arguments) const {
    return shell("'" + variable("TRIREME_BIN") + "/trireme' data " + arguments);
  }

  TemporaryFolder folder_;
  std::string text_;
  std::string pairs_ = (folder_ / "pairs").string();
};

TEST_F(TextDataCommand, TrainsAVocabularyAndMakesPairsWithIt) {
  const std::string vocabulary = (folder_ / "vocab.txt").string();
  const Finished trained =
      data("vocabulary --text '" + text_ + "' --to '" + vocabulary + "' --size 50");
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_EQ(trained.output, "wrote a vocabulary of 50 tokens to " + vocabulary + "\n");
  const Finished made = data("bert --text '" + text_ + "' --vocabulary '" + vocabulary +
                             "' --to '" + pairs_ + "' --sequence 32 --repeats 2 --seed 3 --static");
  EXPECT_EQ(made.code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("of 48 sentences in 6 documents to " + pairs_));
  const auto pairs = data::bert_pairs(pairs_);
  EXPECT_EQ(pairs->settings(),
            (data::BertPairsSettings{
                .sequence_length = 32, .repeats = 2, .static_masking = true, .seed = 3}));
}

// Pairs and their vocabulary are replaced together, or not at all.
TEST_F(TextDataCommand, KeepsAFolderIfItCannotMakeAnother) {
  const auto make = [&](const std::string& text) {
    return data("bert --text '" + text + "' --prose --vocabulary-size 50 --to '" + pairs_ + "'");
  };
  EXPECT_EQ(make(text_).code, 0);
  const auto tokens_of_first = [&] { return data::bert_pairs(pairs_)->get(0).front(); };
  const at::Tensor before = tokens_of_first();
  const std::string vocabulary = read_file(folder_ / "pairs/vocab.txt");
  const std::string one =
      folder_.write("one.txt", "A text that is one document. So it has no others.").string();
  const Finished failed = make(one);
  EXPECT_EQ(failed.code, 2) << failed.output;
  EXPECT_THAT(failed.output, HasSubstr("the text has 1 documents"));
  EXPECT_EQ(read_file(folder_ / "pairs/vocab.txt"), vocabulary);
  EXPECT_TRUE(tokens_of_first().equal(before));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "pairs/new_vocab.txt"));
  const Finished nowhere = data("bert --text '" + text_ + "' --prose --to /dev/null/pairs");
  EXPECT_THAT(nowhere.output,
              AllOf(HasSubstr("/dev/null/pairs cannot be created"), HasSubstr("hint: ")));
}

TEST_F(TextDataCommand, TrainsTheVocabularyOfPairsItself) {
  const Finished made =
      data("bert --text '" + text_ + "' --prose --cased --whole-words --mask 0.2 --short 0 " +
           "--vocabulary-size 52 --to '" + pairs_ + "'");
  EXPECT_EQ(made.code, 0) << made.output;
  const auto pairs = data::bert_pairs(pairs_);
  EXPECT_EQ(pairs->tokenizer().vocabulary_size(), 52);
  EXPECT_EQ(pairs->settings(), (data::BertPairsSettings{.short_probability = 0,
                                                        .mask_probability = 0.2,
                                                        .whole_words = true,
                                                        .lowercase = false}));
  EXPECT_THAT(data::bert_batches(pairs).columns(),
              ElementsAre("tokens", "labels", "token_types", "mask", "next_sentence"));
}

TEST_F(TextDataCommand, NamesWhatIsWrong) {
  const auto error_of = [&](const std::string& arguments) {
    const Finished finished = data("bert --to '" + pairs_ + "' " + arguments);
    EXPECT_EQ(finished.code, 2) << finished.output;
    return finished.output;
  };
  const std::string bad = folder_.write("bad.txt", "good\nbad \xff\n").string();
  EXPECT_THAT(error_of("--text '" + text_ + "' '" + bad + "'"),
              HasSubstr(bad + ": line 2 is not UTF-8"));
  EXPECT_THAT(error_of("--text /nowhere/text"), HasSubstr("/nowhere/text"));
  EXPECT_THAT(error_of("--text '" + text_ + "' --mask 1.5"), HasSubstr("mask_probability is 1.5"));
  EXPECT_THAT(error_of("--text '" + text_ + "' --vocabulary v --vocabulary-size 9"),
              AllOf(HasSubstr("--vocabulary-size"), HasSubstr("leave one of them out")));
  EXPECT_THAT(error_of("--text '" + text_ + "' --vocabulary-size 9"),
              HasSubstr("a vocabulary of 9 tokens"));
  EXPECT_THAT(error_of("--text '" + text_ + "' --sequence 4"), HasSubstr("--sequence"));
  // It used to be taken for the highest number.
  EXPECT_THAT(error_of("--text '" + text_ + "' --seed -1"),
              AllOf(HasSubstr("--seed"), HasSubstr("-1"), HasSubstr("0")));
  EXPECT_THAT(data("bert --to x").output, HasSubstr("--text is required"));
}

}  // namespace
}  // namespace trireme::test
