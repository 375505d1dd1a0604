// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/bpe_files.h>

#include <trireme/base/error.h>
#include <trireme/data/text/detail/text_file.h>
#include <trireme/data/text/detail/tokenizer_json.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::data::detail {
namespace {

using nlohmann::json;

constexpr std::string_view kHint = "only byte-level BPE is read: see docs/formats/vocabularies.md";

// Adds the merge of two tokens. `place` is the position in the file, for messages.
void add_merge(BpeRecipe& recipe, std::int32_t rank, std::string_view left, std::string_view right,
               const std::string& place) {
  const auto number_of = [&](std::string_view token) {
    if (const auto number = recipe.vocabulary.find(token)) return *number;
    throw DataError(
        join_message(place, ": the token '", token, "' is not in ", recipe.vocabulary.file()),
        "vocabulary and merges must belong together");
  };
  const std::int32_t left_number = number_of(left);
  const std::int32_t right_number = number_of(right);
  recipe.pairs.add(left_number, right_number, rank, number_of(join_message(left, right)));
}

// Splits `left right` into its two tokens. Throws DataError for other text.
std::pair<std::string_view, std::string_view> tokens_of(std::string_view text,
                                                        const std::string& place) {
  const std::size_t space = text.find(' ');
  const std::string_view right =
      space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  if (space != 0 && !right.empty() && right.find(' ') == std::string_view::npos)
    return {text.substr(0, space), right};
  throw DataError(join_message(place, ": '", text, "', expected two tokens with a space between"),
                  kDamagedVocabulary);
}

void add_merges(BpeRecipe& recipe, const std::filesystem::path& path) {
  const std::string text = read_text(path);
  std::int32_t rank = 0;
  std::size_t line_number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const std::string place = join_message(path.string(), ": line ", line_number);
    const auto [left, right] = tokens_of(line, place);
    add_merge(recipe, rank++, left, right, place);
  }
}

// The functions below read Hugging Face's tokenizer.json.

void add_json_merges(BpeRecipe& recipe, const json& merges, const TokenizerFile& file) {
  std::int32_t rank = 0;
  for (const json& merge : merges) {
    const std::string place = join_message(file.path.string(), ": model.merges[", rank, "]");
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(recipe, rank, merge[0].get<std::string>(), merge[1].get<std::string>(), place);
    } else if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const auto [left, right] = tokens_of(text, place);
      add_merge(recipe, rank, left, right, place);
    } else {
      throw DataError(join_message(place, " is ", merge.dump(), ", expected two tokens"),
                      kDamagedVocabulary);
    }
    ++rank;
  }
}

void add_model(BpeRecipe& recipe, const json& model, const TokenizerFile& file) {
  // Old files have no type.
  const json& type = member(model, "type");
  if (!model.is_object() || (!type.is_null() && type != "BPE"))
    refuse(file, "model.type", type, "\"BPE\"");
  const json& dropout = member(model, "dropout");
  if (dropout.is_number() && dropout != 0) refuse(file, "model.dropout", dropout, "none");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(model, name).empty())
      refuse(file, join_message("model.", name), member(model, name), "none");
  }
  if (flag(model, "byte_fallback")) refuse(file, "model.byte_fallback", "true", "false");
  const json& vocabulary = member(model, "vocab");
  const json& merges = member(model, "merges");
  if (!vocabulary.is_object()) refuse(file, "model.vocab", vocabulary, "numbers by token");
  if (!merges.is_array()) refuse(file, "model.merges", merges, "a list");
  recipe.prefers_whole_words = flag(model, "ignore_merges");
  add_tokens(recipe.vocabulary, vocabulary);
  add_json_merges(recipe, merges, file);
}

// Adds the effect of one pre_tokenizer. Returns true if it is ByteLevel, which converts text to
// bytes.
bool add_cutter(BpeRecipe& recipe, const json& cutter, const std::string& place,
                const TokenizerFile& file) {
  const std::string type = text_of(cutter, "type");
  const std::string name = file.path.string() + ": " + place;
  if (type == "ByteLevel") {
    recipe.adds_space = flag(cutter, "add_prefix_space", true);
    if (recipe.adds_space && !recipe.patterns.empty())
      refuse(file, place + ".add_prefix_space", "true", "false after other pre_tokenizers");
    if (flag(cutter, "use_regex", true)) recipe.patterns.emplace_back(kGpt2Words, name);
    return true;
  }
  if (type == "Digits") {
    recipe.patterns.emplace_back(flag(cutter, "individual_digits") ? R"(\p{N})" : R"(\p{N}+)",
                                 name);
    return false;
  }
  if (type != "Split") refuse(file, place, cutter, "ByteLevel, Digits or Split");
  const json& pattern = member(cutter, "pattern");
  const std::string expression = text_of(pattern, "Regex");
  const std::string text = text_of(pattern, "String");
  if (expression.empty() && text.empty())
    refuse(file, place + ".pattern", pattern, "a Regex or String");
  // Other behaviors drop or merge the text between words.
  if (text_of(cutter, "behavior") != "Isolated" || flag(cutter, "invert"))
    refuse(file, place, cutter, "the behavior \"Isolated\" without invert");
  recipe.patterns.emplace_back(expression.empty() ? quoted_expression(text) : expression, name);
  return false;
}

void add_cutters(BpeRecipe& recipe, const json& cutter, const TokenizerFile& file) {
  bool is_byte_level = false;
  if (text_of(cutter, "type") == "Sequence") {
    std::size_t index = 0;
    for (const json& part : member(cutter, "pretokenizers")) {
      const std::string place = join_message("pre_tokenizer.pretokenizers[", index++, "]");
      if (is_byte_level) refuse(file, place, part, "ByteLevel to be the last");
      is_byte_level = add_cutter(recipe, part, place, file);
    }
  } else {
    is_byte_level = add_cutter(recipe, cutter, "pre_tokenizer", file);
  }
  if (!is_byte_level) refuse(file, "pre_tokenizer", cutter, "one with ByteLevel");
}

}  // namespace

BpeRecipe read_gpt2_files(const std::filesystem::path& vocabulary,
                          const std::filesystem::path& merges,
                          const std::vector<std::string>& special_tokens) {
  BpeRecipe recipe(vocabulary.string());
  add_tokens(recipe.vocabulary, read_json<json>(vocabulary));
  add_merges(recipe, merges);
  for (const std::string& name : special_tokens) {
    const auto number = recipe.vocabulary.find(name);
    if (!number || name.empty()) {
      throw DataError(
          join_message("the special token '", name, "' is not in ", vocabulary.string()),
          "name tokens of the vocabulary");
    }
    recipe.added.push_back({.name = name, .number = *number});
  }
  recipe.patterns.emplace_back(kGpt2Words, "the words of GPT-2");
  return recipe;
}

BpeRecipe read_tokenizer_json(const std::filesystem::path& path) {
  const json content = read_json<json>(path);
  const TokenizerFile file{path, kHint};
  const json& normalizer = member(content, "normalizer");
  if (!is_empty_normalizer(normalizer)) refuse(file, "normalizer", normalizer, "none");
  BpeRecipe recipe(path.string());
  add_model(recipe, member(content, "model"), file);
  recipe.added = add_special_tokens(recipe.vocabulary, member(content, "added_tokens"), file);
  add_cutters(recipe, member(content, "pre_tokenizer"), file);
  return recipe;
}

}  // namespace trireme::data::detail
