// SPDX-License-Identifier: Apache-2.0
// Parts of Hugging Face's tokenizer.json that are common to all models. These are templates, so
// that the header does not include the JSON library; `Json` is nlohmann::json.
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

/// The file that is read, and the hint for errors about it.
struct TokenizerFile {
  std::filesystem::path path;  ///< The path of the file.
  std::string_view hint;       ///< The hint of the error messages.
};

/// Throws the DataError for a value in the file that is not supported.
/// @param file the file.
/// @param place the path of the value in the file.
/// @param value the value found.
/// @param expected the values that are supported.
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

/// Returns the member with this name; null if there is none or `object` is not an object.
template <typename Json>
const Json& member(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

/// Returns the boolean with this name, or `otherwise` if there is none.
template <typename Json>
bool flag(const Json& object, const char* name, bool otherwise = false) {
  const Json& value = member(object, name);
  return value.is_boolean() ? value.template get<bool>() : otherwise;
}

/// Returns the string with this name, or an empty string if there is none.
template <typename Json>
std::string text_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_string() ? value.template get<std::string>() : std::string();
}

/// Adds tokens with their numbers. Throws DataError if a number is not an integer, and errors of
/// Vocabulary::add.
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

/// Reads `added_tokens` and adds the missing ones to the vocabulary. Throws DataError if a token
/// has no name or number, has another number in the vocabulary, or must be a word of its own
/// (`single_word`).
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

/// Returns true if a normalizer changes nothing: it is null or an empty sequence.
template <typename Json>
bool is_empty_normalizer(const Json& normalizer) {
  return normalizer.is_null() ||
         (text_of(normalizer, "type") == "Sequence" && member(normalizer, "normalizers").empty());
}

}  // namespace trireme::data::detail
