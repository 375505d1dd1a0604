// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/special_tokens.h>

#include <trireme/data/text/detail/utf8.h>

#include <algorithm>
#include <utility>

namespace trireme::data::detail {
namespace {

std::size_t space_before(std::string_view text) {
  std::size_t bytes = 0;
  for (;;) {
    const CodePoint last = last_character(text.substr(0, text.size() - bytes));
    if (last.bytes == 0 || !is_white_space(last.value)) return bytes;
    bytes += last.bytes;
  }
}

std::size_t space_after(std::string_view text) {
  std::size_t bytes = 0;
  for (;;) {
    const CodePoint first = first_character(text.substr(bytes));
    if (first.bytes == 0 || !is_white_space(first.value)) return bytes;
    bytes += first.bytes;
  }
}

}  // namespace

std::vector<SpecialToken> ordinary_tokens(std::vector<SpecialToken> tokens) {
  std::erase_if(tokens, [](const SpecialToken& token) { return token.is_special; });
  return tokens;
}

SpecialTokens::SpecialTokens(std::vector<SpecialToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, std::ranges::greater{},
                    [](const SpecialToken& token) { return token.name.size(); });
  for (const SpecialToken& token : tokens_) {
    const char first = token.name.front();
    if (first_bytes_.find(first) == std::string::npos) first_bytes_.push_back(first);
  }
}

const SpecialToken* SpecialTokens::find(std::string_view text) const {
  const auto found = std::ranges::find_if(
      tokens_, [&](const SpecialToken& token) { return text.starts_with(token.name); });
  return found == tokens_.end() ? nullptr : &*found;
}

std::vector<SpecialTokens::Piece> SpecialTokens::cut(std::string_view text) const {
  std::vector<Piece> pieces;
  const auto add = [&](std::string_view piece, const SpecialToken* token) {
    if (!piece.empty()) pieces.push_back({piece, token});
  };
  std::size_t done = 0;
  std::size_t at = 0;
  while (!tokens_.empty() &&
         (at = text.find_first_of(first_bytes_, at)) != std::string_view::npos) {
    const SpecialToken* const token = find(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t end = at + token->name.size();
    if (token->takes_space_after) end += space_after(text.substr(end));
    if (token->takes_space_before) at -= space_before(text.substr(done, at - done));
    add(text.substr(done, at - done), nullptr);
    add(text.substr(at, end - at), token);
    done = at = end;
  }
  add(text.substr(done), nullptr);
  return pieces;
}

}  // namespace trireme::data::detail
