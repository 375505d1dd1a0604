// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/byte_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/data/text/detail/special_tokens.h>

#include <algorithm>
#include <utility>

namespace trireme::data {
namespace {

constexpr std::int64_t kBytes = 256;

}  // namespace

ByteTokenizer::ByteTokenizer(const std::vector<std::string>& special_tokens)
    : names_(std::make_shared<const std::vector<std::string>>(special_tokens)) {
  std::vector<detail::SpecialToken> tokens;
  for (const std::string& name : special_tokens) {
    if (name.empty())
      throw UsageError("a special token without a name", "name it, such as <|endoftext|>");
    if (std::ranges::count(special_tokens, name) > 1) {
      throw UsageError(join_message("the special token ", name, " is there twice"),
                       "give each its own name");
    }
    tokens.push_back({.name = name, .number = kBytes + static_cast<std::int64_t>(tokens.size())});
  }
  special_ = std::make_shared<const detail::SpecialTokens>(std::move(tokens));
}

std::vector<std::int64_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int64_t> tokens;
  tokens.reserve(text.size());
  for (const auto& [piece, token] : special_->cut(text)) {
    if (token != nullptr) {
      tokens.push_back(token->number);
      continue;
    }
    for (const char byte : piece) tokens.push_back(static_cast<unsigned char>(byte));
  }
  return tokens;
}

std::vector<std::int64_t> ByteTokenizer::encode_plain(std::string_view text) const {
  std::vector<std::int64_t> tokens;
  tokens.reserve(text.size());
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (std::size_t place = 0; place < tokens.size(); ++place) {
    const std::int64_t token = tokens[place];
    if (token < 0 || token >= vocabulary_size())
      detail::fail_unknown_token(token, place, vocabulary_size());
    if (token < kBytes) {
      text.push_back(static_cast<char>(token));
    } else {
      text += (*names_)[static_cast<std::size_t>(token - kBytes)];
    }
  }
  return text;
}

std::optional<std::int64_t> ByteTokenizer::find(std::string_view text) const {
  if (text.size() == 1) return static_cast<unsigned char>(text[0]);
  const auto found = std::ranges::find(*names_, text);
  if (found == names_->end()) return std::nullopt;
  return kBytes + (found - names_->begin());
}

std::int64_t ByteTokenizer::vocabulary_size() const {
  return kBytes + static_cast<std::int64_t>(names_->size());
}

}  // namespace trireme::data
