// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/vocabulary.h>

#include <trireme/base/error.h>

namespace trireme::data::detail {
namespace {

constexpr std::int64_t kMostTokens = 1 << 24;

}  // namespace

void Vocabulary::add(const std::string& token, std::int64_t number) {
  if (number < 0 || number >= kMostTokens) {
    throw DataError(join_message(file_, ": the token '", token, "' has the number ", number,
                                 ", expected 0 to ", kMostTokens - 1),
                    kDamagedVocabulary);
  }
  const auto place = static_cast<std::size_t>(number);
  if (place >= tokens_.size()) tokens_.resize(place + 1);
  if (tokens_[place]) {
    throw DataError(join_message(file_, ": the tokens '", *tokens_[place], "' and '", token,
                                 "' both have the number ", number),
                    kDamagedVocabulary);
  }
  tokens_[place] = token;
  numbers_.insert_or_assign(token, static_cast<std::int32_t>(number));
}

std::optional<std::int32_t> Vocabulary::find(std::string_view token) const {
  const auto found = numbers_.find(token);
  if (found == numbers_.end()) return std::nullopt;
  return found->second;
}

}  // namespace trireme::data::detail
