// SPDX-License-Identifier: Apache-2.0
// A tokenizer with one token per byte. It works for any language and any file without a vocabulary.
#pragma once

#include <trireme/data/text/tokenizer.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

namespace detail {
class SpecialTokens;
}

/// Maps each byte to the token of its value, 0 to 255. Special tokens follow. Cheap to copy.
class ByteTokenizer final : public Tokenizer {
 public:
  /// Makes a tokenizer. Throws UsageError if a name is empty or is there twice.
  /// @param special_tokens the names of the tokens 256, 257 and so on.
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
