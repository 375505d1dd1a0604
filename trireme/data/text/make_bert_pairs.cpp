// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/make_bert_pairs.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/data/files/npy_format.h>
#include <trireme/data/philox.h>
#include <trireme/data/text/detail/bert_pairs_files.h>
#include <trireme/data/text/detail/text_file.h>
#include <trireme/data/text/tokens.h>

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace trireme::data {
namespace {

using Tokens = std::vector<std::int32_t>;
using TokenizedDocument = std::vector<Tokens>;

// What random numbers are for, the last of the four numbers that they are made from.
enum class Purpose : std::uint64_t { kPairs, kMasking };

struct Pair {
  Tokens first;
  Tokens second;
  bool is_random = false;
};

void append(Tokens& tokens, std::span<const Tokens> sentences) {
  for (const Tokens& sentence : sentences)
    tokens.insert(tokens.end(), sentence.begin(), sentence.end());
}

// Makes the pairs of one document after another.
class PairMaker {
 public:
  PairMaker(const std::vector<TokenizedDocument>& documents, const BertPairsSettings& settings)
      : documents_(documents), settings_(settings), most_(settings.sequence_length - 3) {}

  template <typename Emit>
  void make(std::size_t number, Random& random, const Emit& emit) const {
    const TokenizedDocument& document = documents_[number];
    std::int64_t length = draw_length(random);
    std::size_t begin = 0;  // The sentences from here on are collected for the next pair.
    std::int64_t collected = 0;
    for (std::size_t next = 0; next < document.size();) {
      collected += std::ssize(document[next++]);
      if (next < document.size() && collected < length) continue;
      const std::span<const Tokens> piece(document.data() + begin, next - begin);
      const std::size_t first =
          piece.size() == 1 ? 1 : static_cast<std::size_t>(1 + random.below(std::ssize(piece) - 1));
      Pair pair;
      append(pair.first, piece.first(first));
      pair.is_random = piece.size() == 1 || random.uniform() < settings_.random_probability;
      if (pair.is_random) {
        pair.second = draw_second(number, length - std::ssize(pair.first), random);
        next = begin + first;  // The rest was not used.
      } else {
        append(pair.second, piece.subspan(first));
      }
      shorten(pair, random);
      emit(pair);
      begin = next;
      collected = 0;
      length = draw_length(random);
    }
  }

 private:
  // Returns the number of tokens to collect for a pair.
  std::int64_t draw_length(Random& random) const {
    if (random.uniform() >= settings_.short_probability) return most_;
    return 2 + random.below(most_ - 1);
  }

  // Returns about `length` tokens, and at least one sentence, of another document.
  Tokens draw_second(std::size_t own, std::int64_t length, Random& random) const {
    auto other = static_cast<std::size_t>(random.below(std::ssize(documents_) - 1));
    if (other >= own) ++other;
    const TokenizedDocument& document = documents_[other];
    auto sentence = static_cast<std::size_t>(random.below(std::ssize(document)));
    Tokens tokens = document[sentence];
    while (++sentence < document.size() && std::ssize(tokens) < length) {
      append(tokens, {&document[sentence], 1});
    }
    return tokens;
  }

  void shorten(Pair& pair, Random& random) const {
    std::size_t first_begin = 0;
    std::size_t second_begin = 0;
    while (std::ssize(pair.first) - static_cast<std::int64_t>(first_begin) +
               std::ssize(pair.second) - static_cast<std::int64_t>(second_begin) >
           most_) {
      const bool is_first_longer =
          pair.first.size() - first_begin > pair.second.size() - second_begin;
      const bool at_begin = random.uniform() < 0.5F;
      if (at_begin) {
        ++(is_first_longer ? first_begin : second_begin);
      } else {
        (is_first_longer ? pair.first : pair.second).pop_back();
      }
    }
    pair.first.erase(pair.first.begin(),
                     pair.first.begin() + static_cast<std::ptrdiff_t>(first_begin));
    pair.second.erase(pair.second.begin(),
                      pair.second.begin() + static_cast<std::ptrdiff_t>(second_begin));
  }

  const std::vector<TokenizedDocument>& documents_;
  const BertPairsSettings& settings_;
  std::int64_t most_;  // Tokens of both sentences.
};

// Writes pairs to the files of a folder.
class PairWriter {
 public:
  PairWriter(const std::filesystem::path& folder, const WordPieceTokenizer& tokenizer,
             const BertPairsSettings& settings)
      : folder_(folder),
        settings_(settings),
        begin_(detail::special_token(tokenizer, "[CLS]")),
        separator_(detail::special_token(tokenizer, "[SEP]")),
        masking_(masking_of(tokenizer, settings.mask_probability, settings.whole_words)),
        tokens_(folder / detail::kPairsTokens, detail::token_type_of(tokenizer.vocabulary_size())) {
    if (settings.static_masking) labels_.emplace(folder / detail::kPairsLabels, at::kInt);
  }

  void add(const Pair& pair) {
    std::vector<std::int64_t> row{begin_};
    row.insert(row.end(), pair.first.begin(), pair.first.end());
    row.push_back(separator_);
    const std::int64_t second = written_ + std::ssize(row);
    row.insert(row.end(), pair.second.begin(), pair.second.end());
    row.push_back(separator_);
    if (labels_) {
      Random random(settings_.seed, 0, static_cast<std::uint64_t>(pairs()),
                    static_cast<std::uint64_t>(Purpose::kMasking));
      const MaskedTokens masked =
          masking_(at::from_blob(row.data(), {std::ssize(row)}, at::kLong), random);
      labels_->add({masked.labels.const_data_ptr<std::int64_t>(), row.size()});
      tokens_.add({masked.input.const_data_ptr<std::int64_t>(), row.size()});
    } else {
      tokens_.add(row);
    }
    places_.insert(places_.end(), {written_, second, pair.is_random ? 1 : 0});
    written_ += std::ssize(row);
  }

  std::int64_t pairs() const { return std::ssize(places_) / 3; }
  std::int64_t tokens() const { return written_; }

  void finish() {
    tokens_.finish();
    if (labels_) labels_->finish();
    AtomicFile places(folder_ / detail::kPairsPlaces);
    places.write(make_npy_header({.dtype = "i8", .shape = {pairs(), 3}}));
    places.write(std::as_bytes(std::span(places_)));
    places.commit();
  }

 private:
  const std::filesystem::path& folder_;
  const BertPairsSettings& settings_;
  std::int64_t begin_;
  std::int64_t separator_;
  BertMasking masking_;
  TokenWriter tokens_;
  std::optional<TokenWriter> labels_;
  std::vector<std::int64_t> places_;  // Begin, second sentence and next_sentence of each pair.
  std::int64_t written_ = 0;          // Tokens so far.
};

std::vector<TokenizedDocument> tokenize(const std::vector<std::filesystem::path>& files,
                                        TextForm form, const WordPieceTokenizer& tokenizer,
                                        MadeBertPairs& made) {
  std::vector<TokenizedDocument> documents;
  for (const std::filesystem::path& file : files) {
    for (const Document& document : read_documents(file, form)) {
      TokenizedDocument tokenized;
      for (const std::string& sentence : document) {
        const std::vector<std::int64_t> tokens = tokenizer.encode_plain(sentence);
        if (!tokens.empty()) tokenized.emplace_back(tokens.begin(), tokens.end());
      }
      made.sentences += std::ssize(tokenized);
      if (!tokenized.empty()) documents.push_back(std::move(tokenized));
    }
  }
  made.documents = std::ssize(documents);
  if (documents.size() < 2) {
    throw DataError(
        join_message("the text has ", documents.size(), " documents in ", files.size(),
                     " files, but pairs with a random second sentence need 2 or more"),
        form == TextForm::kSentences
            ? "separate documents by empty lines, or give more files"
            : "separate documents (chapters, articles) by two empty lines, or give more files");
  }
  return documents;
}

}  // namespace

MadeBertPairs make_bert_pairs(const std::vector<std::filesystem::path>& files, TextForm form,
                              const std::filesystem::path& vocabulary,
                              const std::filesystem::path& folder,
                              const BertPairsSettings& settings) {
  detail::check_settings(settings);
  const auto tokenizer = WordPieceTokenizer::read(vocabulary, {.lowercase = settings.lowercase});
  const std::string tokens_by_line = detail::read_text(vocabulary);
  MadeBertPairs made;
  const std::vector<TokenizedDocument> documents = tokenize(files, form, tokenizer, made);

  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  // Without its description, the folder cannot be opened until everything is written.
  for (const char* const name : {detail::kPairsDescription, detail::kPairsLabels}) {
    if (!failure) std::filesystem::remove(folder / name, failure);
  }
  if (failure) {
    throw CheckpointError(join_message(folder.string(), " cannot be written: ", failure.message()),
                          "give another folder, or check its permissions");
  }
  write_file(folder / detail::kPairsVocabulary, tokens_by_line);
  PairWriter writer(folder, tokenizer, settings);
  const PairMaker maker(documents, settings);
  for (std::int64_t pass = 0; pass < settings.repeats; ++pass) {
    for (std::size_t number = 0; number < documents.size(); ++number) {
      Random random(settings.seed, static_cast<std::uint64_t>(pass), number,
                    static_cast<std::uint64_t>(Purpose::kPairs));
      maker.make(number, random, [&](const Pair& pair) {
        writer.add(pair);
        made.random_pairs += pair.is_random ? 1 : 0;
      });
    }
  }
  writer.finish();
  made.pairs = writer.pairs();
  made.tokens = writer.tokens();
  detail::write_description(folder, {.settings = settings,
                                     .vocabulary_size = tokenizer.vocabulary_size(),
                                     .pairs = made.pairs,
                                     .tokens = made.tokens});
  return made;
}

}  // namespace trireme::data
