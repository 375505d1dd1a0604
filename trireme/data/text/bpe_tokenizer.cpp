// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/bpe_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/data/text/detail/bpe_files.h>
#include <trireme/data/text/detail/byte_pairs.h>
#include <trireme/data/text/detail/special_tokens.h>
#include <trireme/data/text/detail/word_cache.h>

#include <array>
#include <iomanip>
#include <utility>

namespace trireme::data {

using detail::SpecialToken;
using detail::SpecialTokens;

class BpeTokenizer::Engine {
 public:
  explicit Engine(detail::BpeRecipe recipe);

  std::vector<std::int64_t> encode(std::string_view text, bool with_special) const;
  std::string decode(std::span<const std::int64_t> tokens) const;
  std::optional<std::int64_t> find(std::string_view text) const;
  std::int64_t vocabulary_size() const { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  // The state of encoding one text.
  struct Work {
    std::vector<std::int64_t> tokens;
    std::vector<detail::WordScanner> scanners;  // One for each pattern.
    std::vector<std::int32_t> word;
  };

  void encode_words(Work& work, std::size_t pattern, std::string_view text,
                    std::int64_t offset) const;
  void encode_word(Work& work, std::string_view word, std::int64_t offset) const;
  void split_into_bytes(Work& work, std::string_view word, std::int64_t offset) const;

  detail::BpeRecipe recipe_;
  SpecialTokens all_;
  SpecialTokens ordinary_;  // Added tokens that are not special.
  std::array<std::optional<std::int32_t>, 256> tokens_of_bytes_;
  std::vector<std::optional<std::string>> bytes_;  // The bytes of each token.
  mutable detail::WordCache cache_;
};

BpeTokenizer::Engine::Engine(detail::BpeRecipe recipe)
    : recipe_(std::move(recipe)),
      all_(recipe_.added),
      ordinary_(detail::ordinary_tokens(recipe_.added)) {
  const detail::Vocabulary& vocabulary = recipe_.vocabulary;
  for (std::size_t number = 0; number < vocabulary.size(); ++number) {
    const auto& token = vocabulary.token(number);
    bytes_.push_back(token ? std::optional(detail::bytes_of_token(*token)) : std::nullopt);
  }
  for (const SpecialToken& token : recipe_.added)
    bytes_[static_cast<std::size_t>(token.number)] = token.name;
  for (std::size_t byte = 0; byte < tokens_of_bytes_.size(); ++byte)
    tokens_of_bytes_[byte] = vocabulary.find(detail::byte_characters()[byte]);
}

std::vector<std::int64_t> BpeTokenizer::Engine::encode(std::string_view text,
                                                       bool with_special) const {
  Work work;
  work.tokens.reserve(text.size() / 3);
  work.scanners.reserve(recipe_.patterns.size());
  for (const detail::WordPattern& pattern : recipe_.patterns) work.scanners.emplace_back(pattern);
  for (const auto& [piece, token] : (with_special ? all_ : ordinary_).cut(text)) {
    const std::int64_t offset = piece.data() - text.data();
    if (token != nullptr) {
      work.tokens.push_back(token->number);
    } else if (recipe_.adds_space && !piece.starts_with(' ')) {
      encode_words(work, 0, join_message(' ', piece), offset - 1);
    } else {
      encode_words(work, 0, piece, offset);
    }
  }
  return std::move(work.tokens);
}

// Splits `text` by the pattern with this number, and each part by the patterns after it. `offset`
// is the position of `text` in the encoded text, for errors.
void BpeTokenizer::Engine::encode_words(Work& work, std::size_t pattern, std::string_view text,
                                        std::int64_t offset) const {
  if (pattern == work.scanners.size()) {
    encode_word(work, text, offset);
    return;
  }
  detail::WordScanner& scanner = work.scanners[pattern];
  scanner.begin(text);
  while (const auto word = scanner.next())
    encode_words(work, pattern + 1, *word, offset + (word->data() - text.data()));
}

// Appends the tokens of a word, from the cache if possible.
void BpeTokenizer::Engine::encode_word(Work& work, std::string_view word,
                                       std::int64_t offset) const {
  if (cache_.append(word, work.tokens)) return;
  const auto whole = recipe_.prefers_whole_words
                         ? recipe_.vocabulary.find(detail::token_of_bytes(word))
                         : std::nullopt;
  if (whole) {
    work.word.assign(1, *whole);
  } else {
    split_into_bytes(work, word, offset);
    recipe_.pairs.merge(work.word);
  }
  work.tokens.insert(work.tokens.end(), work.word.begin(), work.word.end());
  cache_.keep(word, work.word);
}

void BpeTokenizer::Engine::split_into_bytes(Work& work, std::string_view word,
                                            std::int64_t offset) const {
  work.word.clear();
  for (const char byte : word) {
    const auto token = tokens_of_bytes_[static_cast<unsigned char>(byte)];
    if (!token) {
      TextWriter number;
      number << std::hex << std::setw(2) << std::setfill('0')
             << int{static_cast<unsigned char>(byte)};
      throw DataError(
          join_message(recipe_.vocabulary.file(), " has no token for the byte 0x", number.str(),
                       " at offset ", offset + static_cast<std::int64_t>(work.word.size())),
          "use a vocabulary with a token for each byte, or leave such texts out");
    }
    work.word.push_back(*token);
  }
}

std::string BpeTokenizer::Engine::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  text.reserve(tokens.size() * 4);
  for (std::size_t place = 0; place < tokens.size(); ++place) {
    const std::int64_t token = tokens[place];
    const bool is_in_range = token >= 0 && token < vocabulary_size();
    if (!is_in_range || !bytes_[static_cast<std::size_t>(token)])
      detail::fail_unknown_token(token, place, vocabulary_size());
    text += *bytes_[static_cast<std::size_t>(token)];
  }
  return text;
}

std::optional<std::int64_t> BpeTokenizer::Engine::find(std::string_view text) const {
  for (const SpecialToken& token : recipe_.added) {
    if (token.name == text) return token.number;
  }
  return recipe_.vocabulary.find(detail::token_of_bytes(text));
}

BpeTokenizer::BpeTokenizer(std::shared_ptr<const Engine> engine) : engine_(std::move(engine)) {}

BpeTokenizer BpeTokenizer::read(const std::filesystem::path& vocabulary,
                                const std::filesystem::path& merges,
                                const std::vector<std::string>& special_tokens) {
  return BpeTokenizer(
      std::make_shared<const Engine>(detail::read_gpt2_files(vocabulary, merges, special_tokens)));
}

BpeTokenizer BpeTokenizer::read_json(const std::filesystem::path& tokenizer) {
  return BpeTokenizer(std::make_shared<const Engine>(detail::read_tokenizer_json(tokenizer)));
}

std::vector<std::int64_t> BpeTokenizer::encode(std::string_view text) const {
  return engine_->encode(text, true);
}

std::vector<std::int64_t> BpeTokenizer::encode_plain(std::string_view text) const {
  return engine_->encode(text, false);
}

std::string BpeTokenizer::decode(std::span<const std::int64_t> tokens) const {
  return engine_->decode(tokens);
}

std::optional<std::int64_t> BpeTokenizer::find(std::string_view text) const {
  return engine_->find(text);
}

std::int64_t BpeTokenizer::vocabulary_size() const { return engine_->vocabulary_size(); }

}  // namespace trireme::data
