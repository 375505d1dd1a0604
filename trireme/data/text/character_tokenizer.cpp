// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/character_tokenizer.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/data/text/detail/special_tokens.h>
#include <trireme/data/text/detail/text_file.h>
#include <trireme/data/text/detail/utf8.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace trireme::data {
namespace {

using nlohmann::json;

constexpr const char* kKey = "characters";

// Returns the character at `offset`. Throws DataError if the bytes there are not UTF-8.
detail::CodePoint character_at(std::string_view text, std::size_t offset) {
  const detail::CodePoint point = detail::first_character(text.substr(offset));
  if (point.bytes > 0) return point;
  throw DataError(join_message("the text is not UTF-8 at offset ", offset),
                  "convert it to UTF-8, or use a ByteTokenizer");
}

std::vector<char32_t> characters_of(std::string_view text) {
  if (text.empty()) throw UsageError("a vocabulary of an empty text", "give a text");
  std::vector<char32_t> characters;
  // One flag per code point of Unicode: faster than a set for long texts, and only 136 KiB.
  std::vector<bool> seen(0x110000);
  for (std::size_t offset = 0; offset < text.size();) {
    const auto [value, bytes] = character_at(text, offset);
    if (!seen[value]) characters.push_back(value);
    seen[value] = true;
    offset += bytes;
  }
  std::ranges::sort(characters);
  return characters;
}

}  // namespace

CharacterTokenizer::CharacterTokenizer(std::string_view text)
    : CharacterTokenizer(characters_of(text)) {}

CharacterTokenizer::CharacterTokenizer(std::vector<char32_t> characters)
    : characters_(std::make_shared<const std::vector<char32_t>>(std::move(characters))) {}

CharacterTokenizer CharacterTokenizer::read(const std::filesystem::path& path) {
  const json content = detail::read_json<json>(path);
  const auto found = content.find(kKey);
  if (found == content.end() || !found->is_array() || found->empty()) {
    throw DataError(join_message(path.string(), " has no list \"", kKey, '"'),
                    "give a file that CharacterTokenizer::write wrote");
  }
  std::vector<char32_t> characters;
  for (const json& element : *found) {
    const std::string text = element.is_string() ? element.get<std::string>() : std::string();
    const detail::CodePoint point = detail::first_character(text);
    // Requires ascending order, because encode() finds characters by binary search.
    const bool is_next = characters.empty() || point.value > characters.back();
    if (point.bytes == 0 || point.bytes != text.size() || !is_next) {
      throw DataError(
          join_message(path.string(), ": ", kKey, '[', characters.size(), "] is ", element.dump(),
                       ", expected one character after those before it in the order of Unicode"),
          "the file is damaged: make the vocabulary anew of the text that it belongs to");
    }
    characters.push_back(point.value);
  }
  return CharacterTokenizer(std::move(characters));
}

void CharacterTokenizer::write(const std::filesystem::path& path) const {
  json characters = json::array();
  for (const char32_t character : *characters_) characters.push_back(detail::utf8_of(character));
  write_file(path, json{{kKey, std::move(characters)}}.dump() + "\n");
}

std::vector<std::int64_t> CharacterTokenizer::encode(std::string_view text) const {
  std::vector<std::int64_t> tokens;
  tokens.reserve(text.size());
  for (std::size_t offset = 0; offset < text.size();) {
    const auto [value, bytes] = character_at(text, offset);
    // The position in the sorted list is the number of the token.
    const auto found = std::ranges::lower_bound(*characters_, value);
    if (found == characters_->end() || *found != value) {
      throw DataError(
          join_message("the character ", detail::describe_character(value), " at offset ", offset,
                       " is not in the vocabulary of ", characters_->size(), " characters"),
          "make the vocabulary of all texts that it is to encode");
    }
    tokens.push_back(found - characters_->begin());
    offset += bytes;
  }
  return tokens;
}

std::vector<std::int64_t> CharacterTokenizer::encode_plain(std::string_view text) const {
  return encode(text);
}

std::string CharacterTokenizer::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (std::size_t place = 0; place < tokens.size(); ++place) {
    const std::int64_t token = tokens[place];
    if (token < 0 || token >= vocabulary_size())
      detail::fail_unknown_token(token, place, vocabulary_size());
    text += detail::utf8_of((*characters_)[static_cast<std::size_t>(token)]);
  }
  return text;
}

std::optional<std::int64_t> CharacterTokenizer::find(std::string_view text) const {
  const detail::CodePoint point = detail::first_character(text);
  const auto found = std::ranges::lower_bound(*characters_, point.value);
  if (point.bytes == 0 || point.bytes != text.size() || found == characters_->end() ||
      *found != point.value) {
    return std::nullopt;
  }
  return found - characters_->begin();
}

std::int64_t CharacterTokenizer::vocabulary_size() const {
  return static_cast<std::int64_t>(characters_->size());
}

}  // namespace trireme::data
