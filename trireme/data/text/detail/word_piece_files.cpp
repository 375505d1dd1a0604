// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/word_piece_files.h>

#include <trireme/base/error.h>
#include <trireme/data/text/detail/text_file.h>
#include <trireme/data/text/detail/tokenizer_json.h>
#include <trireme/data/text/detail/utf8.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>

namespace trireme::data::detail {
namespace {

using nlohmann::json;

constexpr std::string_view kHint =
    "only what BERT does to a text is read: see docs/formats/vocabularies.md";

std::string_view without_space_at_end(std::string_view line) {
  for (;;) {
    const CodePoint last = last_character(line);
    if (last.bytes == 0 || !is_white_space(last.value)) return line;
    line.remove_suffix(last.bytes);
  }
}

// Adds one token per line; the number of a token is that of its line.
void add_lines(Vocabulary& vocabulary, const std::filesystem::path& path) {
  const std::string text = read_text(path);
  std::int64_t number = 0;
  for (std::string_view rest = text; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (valid_bytes(line) < line.size()) {
      throw DataError(join_message(path.string(), ": line ", number + 1, " is not UTF-8"),
                      kDamagedVocabulary);
    }
    vocabulary.add(std::string(without_space_at_end(line)), number);
  }
  if (number == 0)
    throw DataError(join_message(path.string(), " has no tokens"), kDamagedVocabulary);
}

// Returns the number of a token that must exist.
std::int64_t number_of(const Vocabulary& vocabulary, std::string_view what,
                       const std::string& name) {
  const auto number = vocabulary.find(name);
  if (number && !name.empty()) return *number;
  throw DataError(join_message("the ", what, " '", name, "' is not in ", vocabulary.file()),
                  "name tokens of the vocabulary");
}

// The functions below read Hugging Face's tokenizer.json.

void add_model(WordPieceRecipe& recipe, const json& model, const TokenizerFile& file) {
  // Old files have no type, but a BPE model has merges.
  const json& type = member(model, "type");
  const bool is_old = type.is_null() && model.is_object() && !model.contains("merges");
  if (type != "WordPiece" && !is_old) refuse(file, "model.type", type, "\"WordPiece\"");
  const json& vocabulary = member(model, "vocab");
  if (!vocabulary.is_object()) refuse(file, "model.vocab", vocabulary, "numbers by token");
  add_tokens(recipe.vocabulary, vocabulary);
  if (const json& prefix = member(model, "continuing_subword_prefix"); !prefix.is_null()) {
    if (!prefix.is_string())
      refuse(file, "model.continuing_subword_prefix", prefix, "a text such as \"##\"");
    recipe.prefix = prefix.get<std::string>();
  }
  if (const json& longest = member(model, "max_input_chars_per_word"); !longest.is_null()) {
    if (!longest.is_number_unsigned())
      refuse(file, "model.max_input_chars_per_word", longest, "a number of characters");
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    recipe.longest = static_cast<std::int64_t>(std::min(longest.get<std::uint64_t>(), kMost));
  }
  const json& unknown = member(model, "unk_token");
  recipe.unknown = number_of(recipe.vocabulary, "unknown token",
                             unknown.is_null() ? "[UNK]" : text_of(model, "unk_token"));
}

void add_normalizer(WordPieceRecipe& recipe, const json& normalizer, const TokenizerFile& file) {
  if (is_empty_normalizer(normalizer)) return;
  if (text_of(normalizer, "type") != "BertNormalizer")
    refuse(file, "normalizer", normalizer, "BertNormalizer");
  recipe.text.clean_text = flag(normalizer, "clean_text", true);
  recipe.text.handle_chinese_chars = flag(normalizer, "handle_chinese_chars", true);
  recipe.text.lowercase = flag(normalizer, "lowercase", true);
  recipe.text.strip_accents = flag(normalizer, "strip_accents", recipe.text.lowercase);
}

void add_decoder(WordPieceRecipe& recipe, const json& decoder, const TokenizerFile& file) {
  recipe.decoder_prefix = recipe.prefix;
  if (decoder.is_null()) return;
  if (text_of(decoder, "type") != "WordPiece") refuse(file, "decoder", decoder, "WordPiece");
  recipe.decoder_prefix = text_of(decoder, "prefix");
  recipe.cleans_up = flag(decoder, "cleanup", true);
}

}  // namespace

WordPieceRecipe read_vocabulary_txt(const std::filesystem::path& vocabulary,
                                    const WordPieceOptions& options) {
  WordPieceRecipe recipe(vocabulary.string());
  add_lines(recipe.vocabulary, vocabulary);
  recipe.text = {.clean_text = options.clean_text,
                 .handle_chinese_chars = options.handle_chinese_chars,
                 .strip_accents = options.strip_accents.value_or(options.lowercase),
                 .lowercase = options.lowercase};
  recipe.unknown = number_of(recipe.vocabulary, "unknown token", options.unknown_token);
  recipe.longest = options.longest_word;
  for (const std::string& name : options.special_tokens) {
    recipe.added.push_back(
        {.name = name, .number = number_of(recipe.vocabulary, "special token", name)});
  }
  return recipe;
}

WordPieceRecipe read_word_piece_json(const std::filesystem::path& path) {
  const json content = read_json<json>(path);
  const TokenizerFile file{path, kHint};
  WordPieceRecipe recipe(path.string());
  add_model(recipe, member(content, "model"), file);
  add_normalizer(recipe, member(content, "normalizer"), file);
  recipe.added = add_special_tokens(recipe.vocabulary, member(content, "added_tokens"), file);
  const json& cutter = member(content, "pre_tokenizer");
  if (text_of(cutter, "type") != "BertPreTokenizer")
    refuse(file, "pre_tokenizer", cutter, "BertPreTokenizer");
  add_decoder(recipe, member(content, "decoder"), file);
  return recipe;
}

}  // namespace trireme::data::detail
