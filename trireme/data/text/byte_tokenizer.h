// SPDX-License-Identifier: Apache-2.0
// Every byte is a token: any language and any file, without a vocabulary.
#pragma once

#include <trireme/data/text/tokenizer.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

namespace detail {
class SpecialTokens;
}

/// Token 0 to 255 is the byte of that value; special tokens follow. A cheap value.
class ByteTokenizer final : public Tokenizer {
 public:
  /// @param special_tokens names of the tokens 256, 257 and so on.
  /// Throws UsageError where a name is empty or there twice.
  explicit ByteTokenizer(const std::vector<std::string>& special_tokens = {});

  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::vector<std::int64_t> encode_plain(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> tokens) const override;
  std::optional<std::int64_t> find(std::string_view text) const override;
  std::int64_t vocabulary_size() const override;

 private:
  std::shared_ptr<const std::vector<std::string>> names_;
  std::shared_ptr<const detail::SpecialTokens> special_;
};

}  // namespace trireme::data
