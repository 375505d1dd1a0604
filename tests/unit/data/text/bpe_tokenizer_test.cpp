// SPDX-License-Identifier: Apache-2.0
// tests/parity/text compares with the package `tokenizers`; here is what it has no oracle for.
#include <trireme/data/text/bpe_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/data/text/detail/byte_pairs.h>

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

// Tokens 0 to 255 are the bytes; then come `he`, `ll`, `hell`, ` hell`, `o`'s partner and one that
// GPT-2 has: <|endoftext|>.
const std::vector<std::string> kMore = {"he", "ll", "hell", "\u0120hell", "<|endoftext|>"};
constexpr std::string_view kMerges = "#version: 0.2\nh e\nl l\nhe ll\n\u0120 hell\n";

json vocabulary() {
  json tokens;
  std::int64_t number = 0;
  for (const std::string& character : detail::byte_characters()) tokens[character] = number++;
  for (const std::string& token : kMore) tokens[token] = number++;
  return tokens;
}

json merges() { return json::array({"h e", json::array({"l", "l"}), "he ll", "\u0120 hell"}); }

// A tokenizer.json with the same vocabulary.
json tokenizer_json() {
  return {{"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"added_tokens", json::array()},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary()}, {"merges", merges()}}}};
}

class BpeFiles : public ::testing::Test {
 protected:
  BpeTokenizer read(const std::vector<std::string>& special = {}) {
    return BpeTokenizer::read(vocabulary_, merges_, special);
  }
  BpeTokenizer read_json(const json& content) {
    test::write_file(json_, content.dump());
    return BpeTokenizer::read_json(json_);
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
  std::filesystem::path vocabulary_ = folder_.write("vocab.json", vocabulary().dump());
  std::filesystem::path merges_ = folder_.write("merges.txt", kMerges);
  std::filesystem::path json_ = folder_ / "tokenizer.json";
};

TEST_F(BpeFiles, EncodesAndDecodes) {
  const BpeTokenizer tokenizer = read();
  EXPECT_EQ(tokenizer.vocabulary_size(), 261);
  EXPECT_THAT(tokenizer.encode("hello hell"), ElementsAre(258, 'o', 259));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_EQ(tokenizer.decode(Numbers{258, 'o', 259}), "hello hell");
  EXPECT_EQ(tokenizer.find(" hell"), 259);
  EXPECT_EQ(tokenizer.find("help"), std::nullopt);
}

TEST_F(BpeFiles, GivesBackEveryText) {
  const BpeTokenizer tokenizer = read({"<|endoftext|>"});
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  const std::string reversed(all.rbegin(), all.rend());
  for (const std::string& text :
       {all, reversed, all + all, std::string("hello\xF0\x9F\x98 hell\xC3\xA9"),
        std::string("  \n\n \xFFhe\xFFll<|endoftext|>\xFF"), std::string(10000, ' ')}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode_plain(text)), text);
    EXPECT_EQ(tokenizer.encode(text), tokenizer.encode(text)) << "from the cache";
  }
}

TEST_F(BpeFiles, DoesNotMergeAcrossBytesThatAreNoText) {
  EXPECT_THAT(read().encode("he\xFFll"), ElementsAre(256, 0xFF, 257));
}

TEST_F(BpeFiles, FindsSpecialTokensOnlyWhereAsked) {
  const BpeTokenizer tokenizer = read({"<|endoftext|>"});
  EXPECT_THAT(tokenizer.encode("he<|endoftext|>he"), ElementsAre(256, 260, 256));
  EXPECT_EQ(tokenizer.encode_plain("<|endoftext|>"), read().encode("<|endoftext|>"));
  EXPECT_EQ(tokenizer.encode_plain("<|endoftext|>").size(), 13U);
  EXPECT_EQ(tokenizer.find("<|endoftext|>"), 260);
  EXPECT_EQ(tokenizer.decode(Numbers{260}), "<|endoftext|>");
}

TEST_F(BpeFiles, ServesManyThreads) {
  const BpeTokenizer tokenizer = read();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "hello " + std::to_string(i) + " hell\n";
  const Numbers expected = tokenizer.encode(text);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] { EXPECT_EQ(tokenizer.encode(text), expected); });
}

TEST_F(BpeFiles, TakesLinesOfOtherSystemsAndEmptyOnes) {
  test::write_file(merges_, "h e\r\nl l\r\n\r\nhe ll\r\n");
  EXPECT_THAT(read().encode("hell"), ElementsAre(258));
  test::write_file(merges_, "h e");
  EXPECT_THAT(read().encode("hell"), ElementsAre(256, 'l', 'l'));
}

TEST_F(BpeFiles, NamesFileLineAndTokenOfABadMerge) {
  test::write_file(merges_, "#version: 0.2\nh e\nh\n");
  EXPECT_THAT(error([&] { read(); }),
              HasSubstr(merges_.string() + ": line 3: 'h', expected two tokens"));
  for (const char* line : {"h e l", " e", "h "}) {
    test::write_file(merges_, line);
    EXPECT_THAT(error([&] { read(); }), HasSubstr(": line 1: '")) << line;
  }
  test::write_file(merges_, "h x\n");
  EXPECT_THAT(
      error([&] { read(); }),
      HasSubstr(merges_.string() + ": line 1: the token 'hx' is not in " + vocabulary_.string()));
  test::write_file(merges_, "h \u65E5\n");
  EXPECT_THAT(error([&] { read(); }), HasSubstr("the token '\u65E5' is not in"));
}

TEST_F(BpeFiles, NamesFileAndTokenOfABadVocabulary) {
  const auto message = [&](const json& content) {
    test::write_file(vocabulary_, content.dump());
    return error([&] { read(); });
  };
  EXPECT_THAT(message({{"a", 0}, {"b", 0}}),
              HasSubstr(vocabulary_.string() + ": the tokens 'a' and 'b' both have the number 0"));
  EXPECT_THAT(message({{"a", -1}}), HasSubstr("the token 'a' has the number -1, expected 0 to"));
  EXPECT_THAT(message({{"a", 1 << 24}}), HasSubstr("the token 'a' has the number 16777216"));
  EXPECT_THAT(message({{"a", "x"}}), HasSubstr("the token 'a' has the number \"x\", expected an"));
  EXPECT_THAT(message(json::array()), HasSubstr("is JSON, but not an object"));
  test::write_file(vocabulary_, "{");
  EXPECT_THAT(error([&] { read(); }),
              AllOf(HasSubstr(vocabulary_.string() + " is not JSON"), HasSubstr("line 1")));
  std::filesystem::remove(vocabulary_);
  EXPECT_THAT(error([&] { read(); }), HasSubstr("no file " + vocabulary_.string()));
}

TEST_F(BpeFiles, NamesWhatIsNotInTheVocabulary) {
  EXPECT_THAT(error([&] { read({"<mask>"}); }),
              HasSubstr("the special token '<mask>' is not in " + vocabulary_.string()));
  test::write_file(vocabulary_, json{{"a", 0}, {"c", 3}}.dump());
  test::write_file(merges_, "");
  const BpeTokenizer tokenizer = read();
  EXPECT_THAT(error([&] { tokenizer.encode("aca b"); }),
              HasSubstr(vocabulary_.string() + " has no token for the byte 0x20 at offset 3"));
  EXPECT_THAT(tokenizer.encode("ac"), ElementsAre(0, 3));
  EXPECT_EQ(tokenizer.vocabulary_size(), 4);
  for (const std::int64_t token : {-1, 1, 4}) {
    EXPECT_THAT(message_of<UsageError>([&] { tokenizer.decode(Numbers{0, token}); }),
                HasSubstr("token " + std::to_string(token) + " at place 1 is not in the"));
  }
}

TEST_F(BpeFiles, ReadsTokenizerJson) {
  const BpeTokenizer tokenizer = read_json(tokenizer_json());
  for (const char* text : {"hello hell", "he  \n\xFFll", "it's 12"})
    EXPECT_EQ(tokenizer.encode(text), read().encode(text));
}

TEST_F(BpeFiles, TakesAddedTokensAndTellsSpecialOnes) {
  json content = tokenizer_json();
  content["added_tokens"] = {{{"id", 260}, {"content", "<|endoftext|>"}, {"special", true}},
                             {{"id", 300}, {"content", "h\u00E9"}, {"special", false}}};
  const BpeTokenizer tokenizer = read_json(content);
  EXPECT_EQ(tokenizer.vocabulary_size(), 301);
  EXPECT_THAT(tokenizer.encode("h\u00E9<|endoftext|>he"), ElementsAre(300, 260, 256));
  EXPECT_EQ(tokenizer.encode_plain("h\u00E9<|endoftext|>").size(), 14U);
  EXPECT_EQ(tokenizer.decode(Numbers{300, 260}), "h\u00E9<|endoftext|>");
  EXPECT_EQ(tokenizer.find("h\u00E9"), 300);
}

TEST_F(BpeFiles, PutsASpaceBeforeATextWhereAsked) {
  json content = tokenizer_json();
  content["pre_tokenizer"]["add_prefix_space"] = true;
  content["added_tokens"] = {{{"id", 260}, {"content", "<|endoftext|>"}, {"special", true}}};
  EXPECT_THAT(read_json(content).encode("hell hell<|endoftext|>hell"),
              ElementsAre(259, 259, 260, 259));
}

TEST_F(BpeFiles, TakesWholeWordsWhereAsked) {
  json content = tokenizer_json();
  content["model"]["merges"] = json::array();
  content["model"]["ignore_merges"] = true;
  EXPECT_THAT(read_json(content).encode("hell he"), ElementsAre(258, ' ', 'h', 'e'));
}

TEST_F(BpeFiles, RefusesWhatItCannotDo) {
  EXPECT_THAT(error_with("/normalizer", {{"type", "NFC"}}),
              AllOf(HasSubstr(json_.string() + ": normalizer is {\"type\":\"NFC\"}, expected none"),
                    HasSubstr("docs/formats/vocabularies.md")));
  EXPECT_THAT(error_with("/model/type", "WordPiece"), HasSubstr("model.type is \"WordPiece\""));
  EXPECT_THAT(error_with("/model", 7), HasSubstr("model.type is null"));
  EXPECT_THAT(error_with("/model/dropout", 0.1), HasSubstr("model.dropout is 0.1"));
  EXPECT_THAT(error_with("/model/byte_fallback", true), HasSubstr("model.byte_fallback is true"));
  EXPECT_THAT(error_with("/model/end_of_word_suffix", "</w>"),
              HasSubstr("model.end_of_word_suffix is \"</w>\""));
  EXPECT_THAT(error_with("/model/vocab", nullptr), HasSubstr("model.vocab is null"));
  EXPECT_THAT(error_with("/model/merges", nullptr), HasSubstr("model.merges is null"));
  EXPECT_THAT(error_with("/model/merges/1", 7), HasSubstr("model.merges[1] is 7"));
  EXPECT_THAT(error_with("/model/merges/1", "l"), HasSubstr("model.merges[1]: 'l', expected two"));
  EXPECT_THAT(error_with("/model/merges/1", {"l", "x"}),
              HasSubstr("model.merges[1]: the token 'lx' is not in"));
  EXPECT_THAT(error_with("/added_tokens/0", {{"id", 1}}), HasSubstr("added_tokens[0] is"));
  EXPECT_THAT(
      error_with("/added_tokens/0", {{"id", 7}, {"content", "he"}}),
      HasSubstr("added_tokens[0]: the token 'he' has the number 7, but 256 in model.vocab"));
  EXPECT_THAT(error_with("/added_tokens/0", {{"id", 7}, {"content", "new"}}),
              HasSubstr("both have the number 7"));
  EXPECT_THAT(
      error_with("/added_tokens/0", {{"id", 256}, {"content", "he"}, {"single_word", true}}),
      HasSubstr("added_tokens[0].single_word is true"));
}

TEST_F(BpeFiles, RefusesCuttersThatItDoesNotKnow) {
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const auto sequence = [](const json& parts) {
    return json{{"type", "Sequence"}, {"pretokenizers", parts}};
  };
  const auto split = [](const json& pattern, const char* behavior) {
    return json{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}};
  };
  const auto message = [&](const json& cutter) { return error_with("/pre_tokenizer", cutter); };
  EXPECT_THAT(message(nullptr), HasSubstr("pre_tokenizer is null, expected ByteLevel"));
  EXPECT_THAT(message({{"type", "Whitespace"}}), HasSubstr("pre_tokenizer is"));
  EXPECT_THAT(message({{"type", "Digits"}}), HasSubstr("expected one with ByteLevel"));
  EXPECT_THAT(message(sequence({byte_level, byte_level})),
              HasSubstr("pre_tokenizer.pretokenizers[1] is"));
  EXPECT_THAT(message(sequence({{{"type", "Digits"}}, {{"type", "ByteLevel"}}})),
              HasSubstr("pre_tokenizer.pretokenizers[1].add_prefix_space is true"));
  EXPECT_THAT(message(sequence({split({{"Regex", "a"}}, "Removed"), byte_level})),
              HasSubstr("expected the behavior \"Isolated\""));
  EXPECT_THAT(message(sequence({split({{"Glob", "a"}}, "Isolated"), byte_level})),
              HasSubstr("pre_tokenizer.pretokenizers[0].pattern is"));
  EXPECT_THAT(message(sequence({split({{"Regex", "("}}, "Isolated"), byte_level})),
              HasSubstr("pre_tokenizer.pretokenizers[0]: the regular expression ("));
}

}  // namespace
}  // namespace trireme::data
