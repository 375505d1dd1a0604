// SPDX-License-Identifier: Apache-2.0
// The normalization and word splitting of BERT before the vocabulary lookup (Devlin and others,
// "BERT", 2019: BasicTokenizer of its tokenization.py).
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// The normalization steps. With all of them off, only bytes that are not UTF-8 are removed.
struct BertTextOptions {
  bool clean_text = false;  ///< Removes control characters and turns white space into spaces.
  bool handle_chinese_chars = false;  ///< Makes each Chinese character a word of its own.
  bool strip_accents = false;         ///< Decomposes letters and removes their marks.
  bool lowercase = false;             ///< Converts to lower case.
};

/// Normalizes a text to the form of the words in the vocabulary. Const methods may be called
/// concurrently.
class BertText {
 public:
  /// Prepares the table for ASCII characters.
  explicit BertText(const BertTextOptions& options);

  /// Returns the normalized text in UTF-8, without bytes that are not UTF-8. The Unicode version of
  /// the installed utf8proc decides whether a recently added character is a mark or a capital.
  std::string normalize(std::string_view text) const;

 private:
  void append_ascii(std::string_view text, std::string& result) const;
  void append_others(std::string_view text, std::string& result) const;

  BertTextOptions options_;
  // The replacement of each ASCII character; kLeftOut for none.
  std::array<char, 128> ascii_{};
};

/// Removes the first word from `rest`, which is UTF-8, and returns it; returns an empty view at the
/// end. White space separates words; a punctuation mark is a word of its own.
std::string_view next_bert_word(std::string_view& rest);

}  // namespace trireme::data::detail
