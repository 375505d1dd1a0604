// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/word_piece_training.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/data/text/detail/bert_text.h>
#include <trireme/data/text/detail/utf8.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

namespace trireme::data {
namespace {

constexpr std::string_view kPrefix = "##";

using Token = std::int32_t;
using Pair = std::pair<Token, Token>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    const auto both = static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32U |
                      static_cast<std::uint32_t>(pair.second);
    return std::hash<std::uint64_t>()(both);
  }
};

struct Word {
  std::vector<Token> tokens{};
  std::int64_t count = 0;
};

std::vector<std::string_view> cut_characters(std::string_view word) {
  std::vector<std::string_view> characters;
  while (!word.empty()) {
    const std::size_t bytes = std::max<std::size_t>(detail::first_character(word).bytes, 1);
    characters.push_back(word.substr(0, bytes));
    word.remove_prefix(bytes);
  }
  return characters;
}

// The tokens so far, and the words written in them.
class Merging {
 public:
  Merging(std::vector<std::string> special, std::int64_t minimum_count)
      : tokens_(std::move(special)), minimum_count_(minimum_count) {
    for (std::size_t number = 0; number < tokens_.size(); ++number) {
      numbers_[tokens_[number]] = static_cast<Token>(number);
    }
  }

  // Returns the number of a token, which is added if it is new.
  Token number_of(const std::string& token) {
    const auto [found, is_new] = numbers_.try_emplace(token, static_cast<Token>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    return found->second;
  }

  void add_word(const std::vector<std::string_view>& characters, std::int64_t count) {
    Word word{.count = count};
    for (const std::string_view character : characters) {
      const std::string token(character);
      word.tokens.push_back(number_of(word.tokens.empty() ? token : std::string(kPrefix) + token));
    }
    words_.push_back(std::move(word));
    count_pairs(words_.size() - 1, 1);
  }

  // Merges pairs until there are as many tokens as asked for, or no pair is frequent enough.
  void merge_until(std::size_t most_tokens) {
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
    while (tokens_.size() < most_tokens && !queue_.empty()) {
      const auto [count, pair] = queue_.top();
      queue_.pop();
      const std::int64_t now = counts_[pair];
      if (now < minimum_count_) continue;
      if (now != count) {  // The entry is older than the last change of this pair.
        queue_.push({now, pair});
        continue;
      }
      merge(pair);
    }
  }

  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct Candidate {
    std::int64_t count = 0;
    Pair pair;
  };
  // Orders candidates by count, then by the bytes of both tokens.
  struct ComesLater {
    const std::vector<std::string>* tokens = nullptr;
    bool operator()(const Candidate& a, const Candidate& b) const {
      if (a.count != b.count) return a.count < b.count;
      const auto texts = [&](const Pair& pair) {
        return std::pair<const std::string&, const std::string&>(
            (*tokens)[static_cast<std::size_t>(pair.first)],
            (*tokens)[static_cast<std::size_t>(pair.second)]);
      };
      return texts(b.pair) < texts(a.pair);
    }
  };

  void count_pairs(std::size_t number, int sign) {
    const Word& word = words_[number];
    for (std::size_t place = 1; place < word.tokens.size(); ++place) {
      const Pair pair{word.tokens[place - 1], word.tokens[place]};
      counts_[pair] += sign * word.count;
      if (sign > 0) words_of_[pair].insert(number);
      changed_.insert(pair);
    }
  }

  void merge(const Pair& pair) {
    const std::string second = tokens_[static_cast<std::size_t>(pair.second)];
    const Token merged =
        number_of(tokens_[static_cast<std::size_t>(pair.first)] + second.substr(kPrefix.size()));
    changed_.clear();
    const std::set<std::size_t> words = std::exchange(words_of_[pair], {});
    for (const std::size_t number : words) {
      count_pairs(number, -1);
      replace(words_[number].tokens, pair, merged);
      count_pairs(number, 1);
    }
    for (const Pair& changed : changed_) {
      if (const std::int64_t count = counts_[changed]; count >= minimum_count_) {
        queue_.push({count, changed});
      }
    }
  }

  static void replace(std::vector<Token>& tokens, const Pair& pair, Token merged) {
    std::size_t kept = 0;
    for (std::size_t place = 0; place < tokens.size(); ++place) {
      const bool is_pair = place + 1 < tokens.size() && tokens[place] == pair.first &&
                           tokens[place + 1] == pair.second;
      tokens[kept++] = is_pair ? merged : tokens[place];
      if (is_pair) ++place;
    }
    tokens.resize(kept);
  }

  std::vector<std::string> tokens_;
  std::int64_t minimum_count_;
  std::unordered_map<std::string, Token> numbers_;
  std::vector<Word> words_;
  std::unordered_map<Pair, std::int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::set<std::size_t>, PairHash> words_of_;
  std::set<Pair> changed_;
  std::priority_queue<Candidate, std::vector<Candidate>, ComesLater> queue_{ComesLater{&tokens_}};
};

detail::BertTextOptions text_options(const WordPieceOptions& options) {
  return {.clean_text = options.clean_text,
          .handle_chinese_chars = options.handle_chinese_chars,
          .strip_accents = options.strip_accents.value_or(options.lowercase),
          .lowercase = options.lowercase};
}

void check(std::string_view what, std::int64_t value) {
  if (value >= 1) return;
  throw UsageError(join_message("a WordPieceTrainer whose ", what, " is ", value),
                   "give 1 or more");
}

}  // namespace

struct WordPieceTrainer::Impl {
  WordPieceTrainingOptions options;
  detail::BertText text;
  std::map<std::string, std::int64_t, std::less<>> counts{};
};

WordPieceTrainer::WordPieceTrainer(WordPieceTrainingOptions options) {
  check("vocabulary_size", options.vocabulary_size);
  check("minimum_count", options.minimum_count);
  check("most_characters", options.most_characters);
  check("longest word", options.tokenizer.longest_word);
  const detail::BertText text(text_options(options.tokenizer));
  impl_ = std::make_unique<Impl>(Impl{.options = std::move(options), .text = text});
}

WordPieceTrainer::~WordPieceTrainer() = default;

void WordPieceTrainer::add(std::string_view text) {
  const std::string normalized = impl_->text.normalize(text);
  std::string_view rest = normalized;
  for (std::string_view word = detail::next_bert_word(rest); !word.empty();
       word = detail::next_bert_word(rest)) {
    const auto found = impl_->counts.find(word);
    if (found == impl_->counts.end()) {
      impl_->counts.emplace(word, 1);
    } else {
      ++found->second;
    }
  }
}

std::vector<std::string> WordPieceTrainer::train() const {
  const WordPieceTrainingOptions& options = impl_->options;
  if (impl_->counts.empty())
    throw DataError("the text for a vocabulary has no words", "give files with text");

  std::map<std::string_view, std::int64_t> character_counts;
  for (const auto& [word, count] : impl_->counts) {
    for (const std::string_view character : cut_characters(word)) {
      character_counts[character] += count;
    }
  }
  std::vector<std::pair<std::string_view, std::int64_t>> by_count(character_counts.begin(),
                                                                  character_counts.end());
  std::ranges::stable_sort(by_count,
                           [](const auto& a, const auto& b) { return a.second > b.second; });
  if (std::ssize(by_count) > options.most_characters)
    by_count.resize(static_cast<std::size_t>(options.most_characters));
  std::set<std::string_view> alphabet;
  for (const auto& [character, count] : by_count) alphabet.insert(character);

  Merging merging(options.tokenizer.special_tokens, options.minimum_count);
  for (const std::string_view character : alphabet) merging.number_of(std::string(character));
  for (const auto& [word, count] : impl_->counts) {
    const auto characters = cut_characters(word);
    const bool is_usable =
        std::ssize(characters) <= options.tokenizer.longest_word &&
        std::ranges::all_of(characters, [&](std::string_view c) { return alphabet.contains(c); });
    if (is_usable) merging.add_word(characters, count);
  }
  const std::int64_t least = std::ssize(merging.tokens());
  if (least > options.vocabulary_size) {
    throw UsageError(join_message("a vocabulary of ", options.vocabulary_size,
                                  " tokens, but special tokens and characters alone are ", least),
                     "give a larger vocabulary, or fewer characters (most_characters)");
  }
  merging.merge_until(static_cast<std::size_t>(options.vocabulary_size));
  return merging.tokens();
}

void write_vocabulary(const std::filesystem::path& path, const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token + '\n';
  write_file(path, text);
}

}  // namespace trireme::data
