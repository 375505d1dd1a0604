// SPDX-License-Identifier: Apache-2.0
// Hugging Face's tokenizer.json: what files of all models have in common. Templates, so that this
// header does not bring the library; `Json` is nlohmann::json.
#pragma once

#include <trireme/base/error.h>
#include <trireme/data/text/detail/special_tokens.h>
#include <trireme/data/text/detail/vocabulary.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data::detail {

/// Which file is read, and what of such files can be.
struct TokenizerFile {
  std::filesystem::path path;
  std::string_view hint;  ///< of errors
};

/// Throws DataError: `place` of the file is `value`, expected `expected`.
[[noreturn]] inline void refuse(const TokenizerFile& file, std::string_view place,
                                std::string_view value, std::string_view expected) {
  throw DataError(
      join_message(file.path.string(), ": ", place, " is ", value, ", expected ", expected),
      file.hint);
}
template <typename Json>
  requires requires(const Json& value) { value.dump(); }
[[noreturn]] void refuse(const TokenizerFile& file, std::string_view place, const Json& value,
                         std::string_view expected) {
  refuse(file, place, std::string_view(value.dump()), expected);
}

/// Returns the member of that name; null where there is none, or `object` is none.
template <typename Json>
const Json& member(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

/// Returns `otherwise` where there is no such boolean.
template <typename Json>
bool flag(const Json& object, const char* name, bool otherwise = false) {
  const Json& value = member(object, name);
  return value.is_boolean() ? value.template get<bool>() : otherwise;
}

/// Returns nothing where there is no such text.
template <typename Json>
std::string text_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_string() ? value.template get<std::string>() : std::string();
}

/// Adds numbers by token. Throws DataError where a number is no integer, and as Vocabulary::add.
template <typename Json>
void add_tokens(Vocabulary& vocabulary, const Json& tokens) {
  for (const auto& [token, number] : tokens.items()) {
    if (!number.is_number_integer()) {
      throw DataError(join_message(vocabulary.file(), ": the token '", token, "' has the number ",
                                   number.dump(), ", expected an integer"),
                      kDamagedVocabulary);
    }
    vocabulary.add(token, number.template get<std::int64_t>());
  }
}

/// Reads `added_tokens`, and adds to the vocabulary those that it lacks. Throws DataError where one
/// has no name or number, another number than in the vocabulary, or is to be a word of its own.
template <typename Json>
std::vector<SpecialToken> add_special_tokens(Vocabulary& vocabulary, const Json& tokens,
                                             const TokenizerFile& file) {
  std::vector<SpecialToken> added;
  for (const Json& token : tokens) {
    const std::string place = join_message("added_tokens[", added.size(), "]");
    const std::string name = text_of(token, "content");
    const Json& id = member(token, "id");
    if (name.empty() || !id.is_number_integer())
      refuse(file, place, token, "a token with content and id");
    if (flag(token, "single_word")) refuse(file, place + ".single_word", "true", "false");
    const auto number = id.template get<std::int64_t>();
    const auto known = vocabulary.find(name);
    if (known && *known != number) {
      throw DataError(
          join_message(file.path.string(), ": ", place, ": the token '", name, "' has the number ",
                       number, ", but ", *known, " in model.vocab"),
          kDamagedVocabulary);
    }
    if (!known) vocabulary.add(name, number);
    const bool is_special = flag(token, "special");
    added.push_back({.name = name,
                     .number = number,
                     .takes_space_before = flag(token, "lstrip"),
                     .takes_space_after = flag(token, "rstrip"),
                     .is_special = is_special,
                     .is_normalized = flag(token, "normalized", !is_special)});
  }
  return added;
}

/// Returns whether a normalizer changes nothing: none, or a sequence of none.
template <typename Json>
bool is_empty_normalizer(const Json& normalizer) {
  return normalizer.is_null() ||
         (text_of(normalizer, "type") == "Sequence" && member(normalizer, "normalizers").empty());
}

}  // namespace trireme::data::detail
