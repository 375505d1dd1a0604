// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/word_piece_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/data/text/detail/special_tokens.h>
#include <trireme/data/text/detail/word_cache.h>
#include <trireme/data/text/detail/word_piece_files.h>

#include <algorithm>
#include <array>
#include <utility>

namespace trireme::data {
namespace {

using detail::SpecialToken;
using detail::SpecialTokens;

// The replacements that `tokenizers` applies to each decoded token, in this order.
struct Replacement {
  std::string_view from;
  std::string_view to;
};
constexpr std::array<Replacement, 11> kCleanUp = {{{" .", "."},
                                                   {" ?", "?"},
                                                   {" !", "!"},
                                                   {" ,", ","},
                                                   {" ' ", "'"},
                                                   {" n't", "n't"},
                                                   {" 'm", "'m"},
                                                   {" do not", " don't"},
                                                   {" 's", "'s"},
                                                   {" 've", "'ve"},
                                                   {" 're", "'re"}}};

std::string cleaned_up(std::string text) {
  for (const auto& [from, to] : kCleanUp) {
    for (std::size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

// Returns true unless the byte at this position continues a UTF-8 character.
bool begins_character(std::string_view text, std::size_t at) {
  return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
}

// Returns the tokens that are searched in the normalized text, under their normalized names, or the
// other tokens.
SpecialTokens chosen(std::vector<SpecialToken> tokens, bool are_normalized,
                     const detail::BertText& text) {
  std::erase_if(tokens,
                [&](const SpecialToken& token) { return token.is_normalized != are_normalized; });
  if (are_normalized) {
    for (SpecialToken& token : tokens) token.name = text.normalize(token.name);
    std::erase_if(tokens, [](const SpecialToken& token) { return token.name.empty(); });
  }
  return SpecialTokens(std::move(tokens));
}

}  // namespace

class WordPieceTokenizer::Engine {
 public:
  explicit Engine(detail::WordPieceRecipe recipe);

  std::vector<std::int64_t> encode(std::string_view text, bool with_special) const;
  std::string decode(std::span<const std::int64_t> tokens) const;
  std::optional<std::int64_t> find(std::string_view text) const;
  std::int64_t vocabulary_size() const {
    return static_cast<std::int64_t>(recipe_.vocabulary.size());
  }

 private:
  // The added tokens to search for before and after normalization.
  struct Added {
    SpecialTokens raw;
    SpecialTokens normalized;
  };
  struct Work {
    std::vector<std::int64_t> tokens;
    std::string piece;
    std::vector<std::int32_t> word;
  };

  Added searched(const std::vector<SpecialToken>& tokens) const {
    return {.raw = chosen(tokens, false, text_), .normalized = chosen(tokens, true, text_)};
  }
  void encode_word(Work& work, std::string_view word) const;
  bool cut_word(Work& work, std::string_view word) const;

  detail::WordPieceRecipe recipe_;
  detail::BertText text_;
  Added all_;
  Added ordinary_;                 // Added tokens that are not special.
  std::size_t longest_token_ = 0;  // In bytes.
  mutable detail::WordCache cache_;
};

WordPieceTokenizer::Engine::Engine(detail::WordPieceRecipe recipe)
    : recipe_(std::move(recipe)),
      text_(recipe_.text),
      all_(searched(recipe_.added)),
      ordinary_(searched(detail::ordinary_tokens(recipe_.added))) {
  for (std::size_t number = 0; number < recipe_.vocabulary.size(); ++number) {
    const auto& token = recipe_.vocabulary.token(number);
    if (token) longest_token_ = std::max(longest_token_, token->size());
  }
}

std::vector<std::int64_t> WordPieceTokenizer::Engine::encode(std::string_view text,
                                                             bool with_special) const {
  const Added& added = with_special ? all_ : ordinary_;
  Work work;
  work.tokens.reserve(text.size() / 4);
  for (const auto& [stretch, found] : added.raw.cut(text)) {
    if (found != nullptr) {
      work.tokens.push_back(found->number);
      continue;
    }
    const std::string normalized = text_.normalize(stretch);
    for (const auto& [piece, token] : added.normalized.cut(normalized)) {
      if (token != nullptr) {
        work.tokens.push_back(token->number);
        continue;
      }
      std::string_view rest = piece;
      for (std::string_view word = detail::next_bert_word(rest); !word.empty();
           word = detail::next_bert_word(rest)) {
        encode_word(work, word);
      }
    }
  }
  return std::move(work.tokens);
}

void WordPieceTokenizer::Engine::encode_word(Work& work, std::string_view word) const {
  if (cache_.append(word, work.tokens)) return;
  if (!cut_word(work, word)) work.word.assign(1, static_cast<std::int32_t>(recipe_.unknown));
  work.tokens.insert(work.tokens.end(), work.word.begin(), work.word.end());
  cache_.keep(word, work.word);
}

// Splits a word into the longest tokens from its beginning on and leaves them in `work.word`.
// Returns false if some part of the word has no token.
bool WordPieceTokenizer::Engine::cut_word(Work& work, std::string_view word) const {
  const auto characters = std::ranges::count_if(
      word, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; });
  if (characters > recipe_.longest) return false;
  work.word.clear();
  for (std::size_t begin = 0; begin < word.size();) {
    work.piece = begin == 0 ? std::string() : recipe_.prefix;
    const std::size_t prefix = work.piece.size();
    work.piece += word.substr(begin, longest_token_);
    std::size_t size = work.piece.size() - prefix;
    std::optional<std::int32_t> token;
    for (; size > 0; --size) {
      if (!begins_character(word, begin + size)) continue;
      token = recipe_.vocabulary.find(std::string_view(work.piece).substr(0, prefix + size));
      if (token) break;
    }
    if (!token) return false;
    work.word.push_back(*token);
    begin += size;
  }
  return true;
}

std::string WordPieceTokenizer::Engine::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (std::size_t place = 0; place < tokens.size(); ++place) {
    const std::int64_t token = tokens[place];
    const bool is_in_range = token >= 0 && token < vocabulary_size();
    if (!is_in_range || !recipe_.vocabulary.token(static_cast<std::size_t>(token)))
      detail::fail_unknown_token(token, place, vocabulary_size());
    std::string piece = *recipe_.vocabulary.token(static_cast<std::size_t>(token));
    if (place > 0) {
      if (piece.starts_with(recipe_.decoder_prefix)) {
        piece.erase(0, recipe_.decoder_prefix.size());
      } else {
        piece.insert(0, 1, ' ');
      }
    }
    text += recipe_.cleans_up ? cleaned_up(piece) : piece;
  }
  return text;
}

std::optional<std::int64_t> WordPieceTokenizer::Engine::find(std::string_view text) const {
  return recipe_.vocabulary.find(text);
}

WordPieceTokenizer::WordPieceTokenizer(std::shared_ptr<const Engine> engine)
    : engine_(std::move(engine)) {}

WordPieceTokenizer WordPieceTokenizer::read(const std::filesystem::path& vocabulary,
                                            const WordPieceOptions& options) {
  if (options.longest_word < 1) {
    throw UsageError(join_message("a longest word of ", options.longest_word, " characters"),
                     "give 1 or more; BERT's is 100");
  }
  return WordPieceTokenizer(
      std::make_shared<const Engine>(detail::read_vocabulary_txt(vocabulary, options)));
}

WordPieceTokenizer WordPieceTokenizer::read_json(const std::filesystem::path& tokenizer) {
  return WordPieceTokenizer(
      std::make_shared<const Engine>(detail::read_word_piece_json(tokenizer)));
}

std::vector<std::int64_t> WordPieceTokenizer::encode(std::string_view text) const {
  return engine_->encode(text, true);
}

std::vector<std::int64_t> WordPieceTokenizer::encode_plain(std::string_view text) const {
  return engine_->encode(text, false);
}

std::string WordPieceTokenizer::decode(std::span<const std::int64_t> tokens) const {
  return engine_->decode(tokens);
}

std::optional<std::int64_t> WordPieceTokenizer::find(std::string_view text) const {
  return engine_->find(text);
}

std::int64_t WordPieceTokenizer::vocabulary_size() const { return engine_->vocabulary_size(); }

}  // namespace trireme::data
