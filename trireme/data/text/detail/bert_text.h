// SPDX-License-Identifier: Apache-2.0
// What BERT does with a text before its words are looked up (Devlin and others, "BERT", 2019:
// BasicTokenizer of its tokenization.py).
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// All off: nothing is changed but for bytes that are not UTF-8.
struct BertTextOptions {
  bool clean_text = false;            ///< Controls are left out, white space becomes a space.
  bool handle_chinese_chars = false;  ///< Each becomes a word of its own.
  bool strip_accents = false;         ///< Letters are parted from their marks, which are left out.
  bool lowercase = false;
};

/// Brings a text to the form of which the vocabulary has the words. Const methods may be called
/// concurrently.
class BertText {
 public:
  explicit BertText(const BertTextOptions& options);

  /// Returns UTF-8: bytes that are not are left out. Which new characters are marks or capitals is
  /// what the utf8proc that runs knows of Unicode.
  std::string normalize(std::string_view text) const;

 private:
  void append_ascii(std::string_view text, std::string& result) const;
  void append_others(std::string_view text, std::string& result) const;

  BertTextOptions options_;
  std::array<char, 128> ascii_{};  // what becomes of it; kLeftOut for nothing
};

/// Takes the first word off `rest`, which is UTF-8, and returns it; empty after the last. White
/// space parts words and is in none; a punctuation mark is a word of its own.
std::string_view next_bert_word(std::string_view& rest);

}  // namespace trireme::data::detail
