// SPDX-License-Identifier: Apache-2.0
// tests/parity/text compares with the package `tokenizers`; here is what it has no oracle for.
#include <trireme/data/text/word_piece_tokenizer.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <tests/temporary_folder.h>

#include <thread>

namespace trireme::data {
namespace {

using nlohmann::json;
using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

const std::vector<std::string> kTokens = {"[PAD]",  "[UNK]",     "[CLS]", "[SEP]", "[MASK]", "un",
                                          "##aff",  "##able",    "play",  "##ing", "!",      "Play",
                                          "\u00FC", "##\u00FCb", "[",     "]",     "mask"};

std::string vocabulary_text() {
  std::string text;
  for (const std::string& token : kTokens) text += token + "\n";
  return text;
}

json added_token(std::int64_t number, const char* name, bool is_special) {
  return {{"id", number}, {"content", name}, {"special", is_special}};
}

// A tokenizer.json with the same vocabulary.
json tokenizer_json() {
  json vocabulary;
  for (std::size_t number = 0; number < kTokens.size(); ++number)
    vocabulary[kTokens[number]] = number;
  json added = json::array();
  for (const int number : {0, 1, 2, 3, 4})
    added.push_back(added_token(number, kTokens[static_cast<std::size_t>(number)].c_str(), true));
  return {{"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"added_tokens", added},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocabulary}}}};
}

class WordPieceFiles : public ::testing::Test {
 protected:
  WordPieceTokenizer read(const WordPieceOptions& options = {}) {
    return WordPieceTokenizer::read(vocabulary_, options);
  }
  WordPieceTokenizer read_json(const json& content) {
    test::write_file(json_, content.dump());
    return WordPieceTokenizer::read_json(json_);
  }
  template <typename Action>
  static std::string error(const Action& action) {
    return message_of<DataError>(action);
  }
  // Message for a tokenizer.json in which the member at `pointer` is another.
  std::string error_with(const std::string& pointer, const json& value) {
    json content = tokenizer_json();
    content[json::json_pointer(pointer)] = value;
    return error([&] { read_json(content); });
  }

  test::TemporaryFolder folder_;
  std::filesystem::path vocabulary_ = folder_.write("vocab.txt", vocabulary_text());
  std::filesystem::path json_ = folder_ / "tokenizer.json";
};

TEST_F(WordPieceFiles, CutsWordsIntoTheLongestTokens) {
  const WordPieceTokenizer tokenizer = read();
  EXPECT_EQ(tokenizer.vocabulary_size(), 17);
  EXPECT_THAT(tokenizer.encode("Unaffable  playing!"), ElementsAre(5, 6, 7, 8, 9, 10));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_THAT(tokenizer.encode(" \n"), ElementsAre());
  EXPECT_EQ(tokenizer.find("##ing"), 9);
  EXPECT_EQ(tokenizer.find("[MASK]"), 4);
  EXPECT_EQ(tokenizer.find("ing"), std::nullopt);
}

TEST_F(WordPieceFiles, MakesAWordUnknownThatCannotBeCutWhole) {
  EXPECT_THAT(read().encode("unfable playable ing play!"), ElementsAre(1, 8, 7, 1, 8, 10));
  EXPECT_THAT(read().encode("play\u00FC"), ElementsAre(1));
}

TEST_F(WordPieceFiles, MakesALongWordUnknown) {
  const WordPieceTokenizer tokenizer = read({.longest_word = 7});
  EXPECT_THAT(tokenizer.encode("playing unaffable"), ElementsAre(8, 9, 1));
  EXPECT_THAT(read({.lowercase = false, .longest_word = 3}).encode("\u00FC\u00FCb"),
              ElementsAre(12, 13))
      << "characters, not bytes";
}

TEST_F(WordPieceFiles, FindsSpecialTokensOnlyWhereAsked) {
  const WordPieceTokenizer tokenizer = read();
  EXPECT_THAT(tokenizer.encode("[CLS]play[MASK] [SEP]"), ElementsAre(2, 8, 4, 3));
  EXPECT_THAT(tokenizer.encode_plain("play[MASK]"), ElementsAre(8, 14, 16, 15));
  EXPECT_THAT(tokenizer.encode("[mask]"), ElementsAre(14, 16, 15));
  EXPECT_THAT(read({.special_tokens = {}}).encode("[MASK]"), ElementsAre(14, 16, 15));
}

TEST_F(WordPieceFiles, KeepsCapitalsAndAccentsWhereAsked) {
  EXPECT_THAT(read({.lowercase = false}).encode("Play play \u00FC"), ElementsAre(11, 8, 12));
  EXPECT_THAT(read({.strip_accents = false}).encode("Play \u00DC"), ElementsAre(8, 12));
  EXPECT_THAT(read().encode("\u00FC"), ElementsAre(1)) << "there is no u";
}

TEST_F(WordPieceFiles, DecodesWords) {
  const WordPieceTokenizer tokenizer = read();
  EXPECT_EQ(tokenizer.decode(Numbers{2, 5, 6, 7, 8, 9, 10, 3}), "[CLS] unaffable playing! [SEP]");
  EXPECT_EQ(tokenizer.decode(Numbers{9, 9}), "##inging");
  EXPECT_EQ(tokenizer.decode(Numbers{}), "");
  for (const std::int64_t token : {-1, 17}) {
    EXPECT_THAT(message_of<UsageError>([&] { tokenizer.decode(Numbers{0, token}); }),
                HasSubstr("token " + std::to_string(token) + " at place 1 is not in the"));
  }
}

TEST_F(WordPieceFiles, ServesManyThreads) {
  const WordPieceTokenizer tokenizer = read();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "unaffable " + std::to_string(i) + " Playing\n";
  const Numbers expected = tokenizer.encode(text);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] { EXPECT_EQ(tokenizer.encode(text), expected); });
}

TEST_F(WordPieceFiles, TakesLinesOfOtherSystems) {
  test::write_file(vocabulary_, "[UNK]\r\na \r\n\r\n##b");
  const WordPieceTokenizer tokenizer = read({.special_tokens = {"[UNK]"}});
  EXPECT_THAT(tokenizer.encode("ab a"), ElementsAre(1, 3, 1));
  EXPECT_EQ(tokenizer.vocabulary_size(), 4);
}

TEST_F(WordPieceFiles, CountsTheLastOfATokenThatIsThereTwice) {
  test::write_file(vocabulary_, "[UNK]\na\na\n");
  EXPECT_THAT(read({.special_tokens = {}}).encode("a"), ElementsAre(2));
}

TEST_F(WordPieceFiles, NamesWhatIsWrongInAVocabulary) {
  EXPECT_THAT(error([&] { read({.unknown_token = "<unk>"}); }),
              HasSubstr("the unknown token '<unk>' is not in " + vocabulary_.string()));
  EXPECT_THAT(error([&] { read({.special_tokens = {"[END]"}}); }),
              HasSubstr("the special token '[END]' is not in " + vocabulary_.string()));
  EXPECT_THAT(message_of<UsageError>([&] { read({.longest_word = 0}); }),
              HasSubstr("a longest word of 0 characters"));
  test::write_file(vocabulary_, "[UNK]\na\xFF\n");
  EXPECT_THAT(error([&] { read(); }), HasSubstr(vocabulary_.string() + ": line 2 is not UTF-8"));
  test::write_file(vocabulary_, "");
  EXPECT_THAT(error([&] { read(); }), HasSubstr(vocabulary_.string() + " has no tokens"));
  std::filesystem::remove(vocabulary_);
  EXPECT_THAT(error([&] { read(); }), HasSubstr("no file " + vocabulary_.string()));
}

TEST_F(WordPieceFiles, ReadsTokenizerJson) {
  const WordPieceTokenizer tokenizer = read_json(tokenizer_json());
  for (const char* text : {"[CLS] Unaffable playing! [SEP]", "nothing of it", "\u00DC [MASK]"})
    EXPECT_EQ(tokenizer.encode(text), read().encode(text));
  EXPECT_EQ(tokenizer.decode(Numbers{5, 6, 7, 10}), "unaffable!");
}

TEST_F(WordPieceFiles, TakesWhatATokenizerJsonLeavesOut) {
  json content = tokenizer_json();
  content["normalizer"] = nullptr;
  content["decoder"] = nullptr;
  for (const char* name :
       {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"}) {
    content["model"].erase(name);
  }
  const WordPieceTokenizer tokenizer = read_json(content);
  EXPECT_THAT(tokenizer.encode("Playing play x"), ElementsAre(11, 9, 8, 1));
  EXPECT_EQ(tokenizer.decode(Numbers{11, 9, 10}), "Playing!");
}

TEST_F(WordPieceFiles, TakesOtherPrefixesAndDecoders) {
  json content = tokenizer_json();
  content["model"]["continuing_subword_prefix"] = "##a";
  content["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", false}};
  const WordPieceTokenizer tokenizer = read_json(content);
  EXPECT_THAT(tokenizer.encode("unff!"), ElementsAre(5, 6, 10));
  EXPECT_EQ(tokenizer.decode(Numbers{5, 6, 10}), "unaff !");
}

TEST_F(WordPieceFiles, FindsAddedTokensBeforeOrAfterNormalizing) {
  json content = tokenizer_json();
  content["added_tokens"].push_back(added_token(20, "Un\u00C9", false));  // normalized
  content["added_tokens"].push_back(added_token(21, "PLAYER", true));     // as it is
  const WordPieceTokenizer tokenizer = read_json(content);
  EXPECT_EQ(tokenizer.vocabulary_size(), 22);
  EXPECT_THAT(tokenizer.encode("une UN\u00C9play PLAYER player"), ElementsAre(20, 20, 8, 21, 1));
  EXPECT_THAT(tokenizer.encode_plain("une PLAYER"), ElementsAre(20, 1));
  EXPECT_EQ(tokenizer.decode(Numbers{20, 21}), "Un\u00C9 PLAYER");
  EXPECT_THAT(message_of<UsageError>([&] { tokenizer.decode(Numbers{18}); }),
              HasSubstr("token 18 at place 0"));
}

TEST_F(WordPieceFiles, RefusesWhatItCannotDo) {
  EXPECT_THAT(error_with("/normalizer", {{"type", "NFC"}}),
              AllOf(HasSubstr(json_.string() + ": normalizer is {\"type\":\"NFC\"}, expected Bert"),
                    HasSubstr("docs/formats/vocabularies.md")));
  EXPECT_THAT(error_with("/pre_tokenizer", {{"type", "Whitespace"}}),
              HasSubstr("expected BertPreTokenizer"));
  EXPECT_THAT(error_with("/pre_tokenizer", nullptr), HasSubstr("pre_tokenizer is null"));
  EXPECT_THAT(error_with("/decoder", {{"type", "ByteLevel"}}), HasSubstr("expected WordPiece"));
  EXPECT_THAT(error_with("/model/type", "BPE"), HasSubstr("model.type is \"BPE\""));
  EXPECT_THAT(error_with("/model", 7), HasSubstr("model.type is null"));
  EXPECT_THAT(error_with("/model/vocab", nullptr), HasSubstr("model.vocab is null"));
  EXPECT_THAT(error_with("/model/vocab/play", "x"), HasSubstr("'play' has the number \"x\""));
  EXPECT_THAT(error_with("/model/continuing_subword_prefix", 7),
              HasSubstr("model.continuing_subword_prefix is 7"));
  EXPECT_THAT(error_with("/model/max_input_chars_per_word", -1),
              HasSubstr("model.max_input_chars_per_word is -1"));
  EXPECT_THAT(error_with("/model/unk_token", "<unk>"),
              HasSubstr("the unknown token '<unk>' is not in " + json_.string()));
  EXPECT_THAT(error_with("/added_tokens/0/id", 7),
              HasSubstr("added_tokens[0]: the token '[PAD]' has the number 7, but 0 in model"));
  EXPECT_THAT(error_with("/added_tokens/0/single_word", true),
              HasSubstr("added_tokens[0].single_word is true"));
}

}  // namespace
}  // namespace trireme::data
