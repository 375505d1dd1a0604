// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/bert_pairs.h>

#include <trireme/base/error.h>
#include <trireme/data/dataset_views.h>
#include <trireme/data/text/make_bert_pairs.h>
#include <trireme/data/text/word_piece_training.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <map>
#include <set>
#include <string>

namespace trireme::data {
namespace {

using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every sentence has one word of its own and says its document and place: `d3s7 ...`.
constexpr int kDocuments = 20;
constexpr int kSentences = 30;

std::string name_of(int document, int sentence) {
  return "d" + std::to_string(document) + "s" + std::to_string(sentence);
}

class BertPairsTest : public ::testing::Test {
 protected:
  BertPairsTest() {
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nto\n##ing\nbe\n";
    std::string text;
    for (int document = 0; document < kDocuments; ++document) {
      for (int sentence = 0; sentence < kSentences; ++sentence) {
        vocabulary += name_of(document, sentence) + '\n';
        text += name_of(document, sentence) + " to being\n";
      }
      text += '\n';
    }
    vocabulary_ = folder_.write("vocab.txt", vocabulary);
    text_ = folder_.write("text.txt", text);
  }

  MadeBertPairs make(const BertPairsSettings& settings = {.sequence_length = 32}) {
    return make_bert_pairs({text_}, TextForm::kSentences, vocabulary_, pairs_, settings);
  }

  std::string error_of_reading() {
    return message_of<DataError>([&] {
      const auto pairs = bert_pairs(pairs_);
      for (std::int64_t i = 0; i < pairs->size(); ++i) pairs->get(i);
    });
  }

  test::TemporaryFolder folder_;
  std::filesystem::path vocabulary_;
  std::filesystem::path text_;
  std::filesystem::path pairs_ = folder_ / "pairs";
};

// The document and the number of the first and the last sentence in a range of tokens.
struct Piece {
  int document = -1;
  int first = -1;
  int last = -1;
};

Piece piece_of(const WordPieceTokenizer& tokenizer, const at::Tensor& tokens, std::int64_t begin,
               std::int64_t end) {
  Piece piece;
  for (std::int64_t place = begin; place < end; ++place) {
    const auto token = tokens[place].item<std::int64_t>();
    const std::string word = tokenizer.decode({&token, 1});
    if (!word.starts_with('d')) continue;
    const std::size_t s = word.find('s');
    const int document = std::stoi(word.substr(1, s - 1));
    EXPECT_TRUE(piece.document == -1 || piece.document == document);
    piece.document = document;
    const int sentence = std::stoi(word.substr(s + 1));
    if (piece.first == -1) piece.first = sentence;
    EXPECT_TRUE(piece.last == -1 || sentence == piece.last + 1);
    piece.last = sentence;
  }
  return piece;
}

TEST_F(BertPairsTest, HoldsSentencesThatFollowOrRandomOnes) {
  const MadeBertPairs made = make({.sequence_length = 32, .repeats = 4});
  EXPECT_EQ(made.documents, kDocuments);
  EXPECT_EQ(made.sentences, kDocuments * kSentences);
  const auto pairs = bert_pairs(pairs_);
  EXPECT_EQ(pairs->size(), made.pairs);
  EXPECT_THAT(pairs->columns(), ElementsAre("tokens", "token_types", "mask", "next_sentence"));
  const WordPieceTokenizer& tokenizer = pairs->tokenizer();
  std::int64_t random = 0;
  std::int64_t tokens_of_all = 0;
  std::map<int, std::set<int>> seen;
  for (std::int64_t index = 0; index < pairs->size(); ++index) {
    const auto sample = pairs->get(index);
    const at::Tensor& tokens = sample[0];
    ASSERT_EQ(tokens.sizes(), (std::vector<std::int64_t>{32}));
    const auto length = sample[2].sum().item<std::int64_t>();
    const auto first = length - sample[1].sum().item<std::int64_t>();
    tokens_of_all += length;
    EXPECT_TRUE(sample[2].narrow(0, 0, length).all().item<bool>());
    EXPECT_TRUE(sample[1].narrow(0, first, length - first).eq(1).all().item<bool>());
    EXPECT_TRUE(tokens.narrow(0, length, 32 - length).eq(0).all().item<bool>());
    EXPECT_EQ(tokens[0].item<std::int64_t>(), 2);
    EXPECT_EQ(tokens[first - 1].item<std::int64_t>(), 3);
    EXPECT_EQ(tokens[length - 1].item<std::int64_t>(), 3);
    EXPECT_EQ(tokens.eq(3).sum().item<std::int64_t>(), 2);
    const Piece a = piece_of(tokenizer, tokens, 1, first - 1);
    const Piece b = piece_of(tokenizer, tokens, first, length - 1);
    for (int sentence = a.first; sentence <= a.last; ++sentence) seen[a.document].insert(sentence);
    if (sample[3].item<std::int64_t>() == 1) {
      ++random;
      if (a.document >= 0 && b.document >= 0) {
        EXPECT_NE(a.document, b.document);
      }
    } else if (a.document >= 0 && b.document >= 0) {
      EXPECT_EQ(a.document, b.document);
      EXPECT_GT(b.first, a.last);
      EXPECT_LE(b.first, a.last + 3);  // the words between may have been cut off
      for (int sentence = b.first; sentence <= b.last; ++sentence)
        seen[b.document].insert(sentence);
    }
  }
  EXPECT_EQ(tokens_of_all, made.tokens);
  EXPECT_EQ(random, made.random_pairs);
  // Half are random, and single sentences at the end of a document besides.
  const double share = static_cast<double>(random) / static_cast<double>(made.pairs);
  EXPECT_GT(share, 0.45);
  EXPECT_LT(share, 0.65);
  // In four passes, hardly a sentence is lost by shortening.
  std::size_t used = 0;
  for (const auto& [document, sentences] : seen) used += sentences.size();
  EXPECT_GT(used, 0.98 * kDocuments * kSentences);
}

TEST_F(BertPairsTest, MakesShorterPairsAsOftenAsAsked) {
  const auto shares = [&](double short_probability) {
    make({.sequence_length = 64, .repeats = 4, .short_probability = short_probability});
    const auto pairs = bert_pairs(pairs_);
    std::int64_t full = 0;
    for (std::int64_t i = 0; i < pairs->size(); ++i) {
      full += pairs->get(i)[2].sum().item<std::int64_t>() >= 58 ? 1 : 0;
    }
    return static_cast<double>(full) / static_cast<double>(pairs->size());
  };
  EXPECT_GT(shares(0), 0.7);  // what is left at the end of documents is shorter
  EXPECT_LT(shares(1), 0.3);
}

TEST_F(BertPairsTest, DependsOnTheSeedAlone) {
  const auto tokens_of = [&](std::uint64_t seed) {
    make({.sequence_length = 32, .seed = seed});
    return read_file(pairs_ / "tokens.bin") + read_file(pairs_ / "pairs.npy");
  };
  const std::string once = tokens_of(1);
  EXPECT_NE(tokens_of(2), once);
  EXPECT_EQ(tokens_of(1), once);
}

TEST_F(BertPairsTest, MasksAnewInEachEpoch) {
  make({.sequence_length = 32, .mask_probability = 0.3});
  const auto pairs = bert_pairs(pairs_);
  DataLoader loader = bert_batches(pairs).batch(8);
  EXPECT_THAT(loader.columns(),
              ElementsAre("tokens", "labels", "token_types", "mask", "next_sentence"));
  EXPECT_EQ(bert_batches(pairs, take(pairs, 3)).samples(), 3);
  const Batch first = *loader.open(0)->next();
  const Batch second = *loader.open(1)->next();
  EXPECT_FALSE(at::equal(first["labels"], second["labels"]));
  EXPECT_EQ(first["next_sentence"].sizes(), (std::vector<std::int64_t>{8}));
  for (const Batch& batch : {first, second}) {
    const at::Tensor original =
        at::where(batch["labels"].eq(kIgnoredLabel), batch["tokens"], batch["labels"]);
    for (std::int64_t row = 0; row < 8; ++row)
      EXPECT_TRUE(at::equal(original[row], pairs->get(row)[0]));
    const at::Tensor special = original.lt(5);
    EXPECT_TRUE(batch["labels"].masked_select(special).eq(kIgnoredLabel).all().item<bool>());
  }
}

TEST_F(BertPairsTest, KeepsStaticMasks) {
  const BertPairsSettings settings{.sequence_length = 32, .seed = 3};
  make(settings);
  const auto unmasked = bert_pairs(pairs_);
  BertPairsSettings masked = settings;
  masked.static_masking = true;
  make(masked);
  const auto pairs = bert_pairs(pairs_);
  EXPECT_EQ(pairs->settings(), masked);
  EXPECT_THAT(bert_batches(pairs).columns(),
              ElementsAre("tokens", "labels", "token_types", "mask", "next_sentence"));
  std::int64_t chosen = 0;
  std::int64_t length = 0;
  for (std::int64_t i = 0; i < pairs->size(); ++i) {
    const auto sample = pairs->get(i);
    const at::Tensor original = at::where(sample[1].eq(kIgnoredLabel), sample[0], sample[1]);
    EXPECT_TRUE(at::equal(original, unmasked->get(i)[0]));
    chosen += sample[1].ne(kIgnoredLabel).sum().item<std::int64_t>();
    length += sample[3].sum().item<std::int64_t>();
  }
  EXPECT_NEAR(static_cast<double>(chosen) / static_cast<double>(length), 0.15, 0.03);
  // A folder that is made anew without masks has none.
  make(settings);
  EXPECT_FALSE(std::filesystem::exists(pairs_ / "labels.bin"));
}

TEST_F(BertPairsTest, MasksWholeWords) {
  make({.sequence_length = 32, .mask_probability = 0.5, .whole_words = true});
  const auto pairs = bert_pairs(pairs_);
  const BertMaskingOptions masking = masking_of(pairs->tokenizer(), 0.5, true);
  EXPECT_THAT(masking.continuations, ElementsAre(6));
  EXPECT_THAT(masking.special_tokens, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(masking_of(pairs->tokenizer()).continuations, ElementsAre());
  const Batch batch = *bert_batches(pairs).batch(pairs->size()).open(0)->next();
  const at::Tensor& labels = batch["labels"];
  const at::Tensor original = at::where(labels.eq(kIgnoredLabel), batch["tokens"], labels);
  const at::Tensor continues = original.eq(6).narrow(1, 1, 31);
  const at::Tensor is_chosen = labels.ne(kIgnoredLabel);
  EXPECT_GT(continues.sum().item<std::int64_t>(), 100);
  // `##ing` at the beginning of a piece, where `be` was cut off, stands alone.
  const at::Tensor with_word = continues.logical_and(original.narrow(1, 0, 31).ge(5));
  EXPECT_TRUE(at::equal(is_chosen.narrow(1, 1, 31).masked_select(with_word),
                        is_chosen.narrow(1, 0, 31).masked_select(with_word)));
}

TEST_F(BertPairsTest, ReadsProse) {
  const auto text = folder_.write("prose.txt", "To be. D1s1 to\nbe!\n\n\nD2s2. To be? d3s3.");
  const MadeBertPairs made = make_bert_pairs({text}, TextForm::kProse, vocabulary_, pairs_);
  EXPECT_EQ(made.documents, 2);
  EXPECT_EQ(made.sentences, 5);
}

TEST_F(BertPairsTest, TakesVocabulariesOfMoreThanSixteenBits) {
  std::string large = read_file(vocabulary_);
  for (int i = 0; i < 66'000; ++i) large += "w" + std::to_string(i) + "\n";
  write_file(vocabulary_, large + "last\n");
  write_file(text_, "last to be\n\nto be last\n");
  make();
  const auto pairs = bert_pairs(pairs_);
  const std::int64_t last = pairs->tokenizer().vocabulary_size() - 1;
  EXPECT_TRUE(pairs->get(0)[0].eq(last).any().item<bool>());
}

TEST_F(BertPairsTest, RefusesTextsAndSettingsOfWhichItMakesNoPairs) {
  write_file(text_, "one document\nof two sentences\n");
  EXPECT_THAT(message_of<DataError>([&] { make(); }),
              AllOf(HasSubstr("the text has 1 documents in 1 files"), HasSubstr("empty lines")));
  EXPECT_THAT(message_of<DataError>(
                  [&] { make_bert_pairs({text_}, TextForm::kProse, vocabulary_, pairs_); }),
              HasSubstr("two empty lines"));
  write_file(text_, "bad\xff\n");
  EXPECT_THAT(message_of<DataError>([&] { make(); }), HasSubstr("text.txt: line 1 is not UTF-8"));
  const auto refused = [&](const BertPairsSettings& settings) {
    return message_of<UsageError>([&] { make(settings); });
  };
  EXPECT_THAT(refused({.sequence_length = 4}), HasSubstr("sequence_length is 4"));
  EXPECT_THAT(refused({.repeats = 0}), HasSubstr("repeats is 0"));
  EXPECT_THAT(refused({.short_probability = 1.5}), HasSubstr("short_probability is 1.5"));
  EXPECT_THAT(refused({.random_probability = -1}), HasSubstr("random_probability is -1"));
  EXPECT_THAT(refused({.mask_probability = 2}), HasSubstr("mask_probability is 2"));
  write_file(vocabulary_, "[UNK]\n");
  EXPECT_THAT(message_of<DataError>([&] { make(); }), HasSubstr("'[PAD]' is not in"));
}

TEST_F(BertPairsTest, NamesTheFolderThatItCannotWrite) {
  pairs_ = folder_.write("file", "") / "pairs";
  EXPECT_THAT(message_of<CheckpointError>([&] { make(); }),
              HasSubstr(pairs_.string() + " cannot be written"));
}

TEST_F(BertPairsTest, NamesWhatIsDamaged) {
  EXPECT_THAT(error_of_reading(), HasSubstr("bert.json"));
  make();
  const auto damage = [&](const std::string& name, const std::string& bytes) {
    make();
    write_file(pairs_ / name, bytes);
    return error_of_reading();
  };
  const std::string json = read_file(pairs_ / "bert.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = json;
    changed.replace(changed.find(from), from.size(), to);
    return damage("bert.json", changed);
  };
  EXPECT_THAT(with("\"version\": 1", "\"version\": 2"), HasSubstr("\"version\" is 2, expected 1"));
  EXPECT_THAT(with("\"sequence_length\": 32", "\"sequence_length\": 3"),
              HasSubstr("\"sequence_length\" is 3, expected 5 to"));
  EXPECT_THAT(with("\"sequence_length\": 32", "\"sequence_length\": 6"),
              HasSubstr("pairs.npy: row 0"));
  EXPECT_THAT(with("\"repeats\": 1", "\"repeats\": 1.5"), HasSubstr("1.5, expected an integer"));
  EXPECT_THAT(with("\"seed\": 0", "\"seed\": -1"), HasSubstr("\"seed\" is -1"));
  EXPECT_THAT(with("\"lowercase\": true", "\"lowercase\": 1"), HasSubstr("expected true or false"));
  EXPECT_THAT(with("\"mask_probability\": 0.15", "\"mask_probability\": 15"),
              HasSubstr("\"mask_probability\" is 15"));
  EXPECT_THAT(with("\"static_masking\": false", "\"static_masking\": true"),
              HasSubstr("labels.bin"));
  EXPECT_THAT(with("\"pairs\": ", "\"pairs\": 9"), HasSubstr("pairs.npy is Long"));
  EXPECT_THAT(damage("vocab.txt", read_file(vocabulary_) + "more\n"),
              HasSubstr("vocab.txt has 609 tokens, expected 608"));
  const std::string tokens = read_file(pairs_ / "tokens.bin");
  EXPECT_THAT(damage("tokens.bin", tokens.substr(1)), HasSubstr("tokens.bin has"));
  EXPECT_THAT(damage("tokens.bin", "\xff\xff" + tokens.substr(2)),
              HasSubstr("tokens.bin: token 0 is 65535, but the vocabulary has 608"));
  EXPECT_THAT(damage("pairs.npy", "no array"), HasSubstr("pairs.npy"));
}

TEST_F(BertPairsTest, NamesLabelsThatAreNoTokens) {
  make({.static_masking = true});
  const std::string labels = read_file(pairs_ / "labels.bin");
  for (const std::string& bytes :
       {std::string("\x15\xcd\x5b\x07"), std::string("\xff\xff\xff\xff")}) {
    write_file(pairs_ / "labels.bin", bytes + labels.substr(4));
    EXPECT_THAT(error_of_reading(), HasSubstr("labels.bin: label 0 is "));
  }
}

}  // namespace
}  // namespace trireme::data
