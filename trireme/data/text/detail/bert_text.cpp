// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/bert_text.h>

#include <trireme/data/text/detail/utf8.h>

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

namespace trireme::data::detail {
namespace {

constexpr char kLeftOut = '\x80';  // Not an ASCII character.

bool is_ascii(char byte) { return static_cast<unsigned char>(byte) < 0x80; }

utf8proc_category_t category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

// BERT's own list of ideograph blocks, which does not include all extensions.
bool is_chinese(char32_t character) {
  struct Block {
    char32_t first;
    char32_t last;
  };
  constexpr std::array<Block, 8> kBlocks = {{{0x4E00, 0x9FFF},
                                             {0x3400, 0x4DBF},
                                             {0x20000, 0x2A6DF},
                                             {0x2A700, 0x2B73F},
                                             {0x2B740, 0x2B81F},
                                             {0x2B920, 0x2CEAF},
                                             {0xF900, 0xFAFF},
                                             {0x2F800, 0x2FA1F}}};
  return std::ranges::any_of(kBlocks, [&](const Block& block) {
    return character >= block.first && character <= block.last;
  });
}

// Returns true for characters that cleaning removes.
bool is_dirt(char32_t character) {
  if (character == '\t' || character == '\n' || character == '\r') return false;
  const utf8proc_category_t kind = category(character);
  return character == 0 || character == 0xFFFD || kind == UTF8PROC_CATEGORY_CC ||
         kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_CO;
}

bool is_punctuation(char32_t character) {
  if (character < 0x80)
    return (character >= 33 && character <= 47) || (character >= 58 && character <= 64) ||
           (character >= 91 && character <= 96) || (character >= 123 && character <= 126);
  const utf8proc_category_t kind = category(character);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

char32_t ascii_lower(char32_t character) {
  return character >= 'A' && character <= 'Z' ? character + ('a' - 'A') : character;
}

// Decomposes canonically (NFD) and removes the non-spacing marks.
std::string without_accents(const std::string& text) {
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  std::vector<utf8proc_int32_t> characters(text.size());
  const auto decompose = [&] {
    return utf8proc_decompose(bytes, std::ssize(text), characters.data(), std::ssize(characters),
                              options);
  };
  utf8proc_ssize_t size = decompose();
  if (size > std::ssize(characters)) {
    characters.resize(static_cast<std::size_t>(size));
    size = decompose();
  }
  // The text is valid UTF-8, so only memory can be missing.
  if (size < 0) throw std::bad_alloc();
  characters.resize(static_cast<std::size_t>(size));
  std::string result;
  for (const utf8proc_int32_t character : characters) {
    if (utf8proc_category(character) != UTF8PROC_CATEGORY_MN)
      result += utf8_of(static_cast<char32_t>(character));
  }
  return result;
}

std::string lower_case(const std::string& text) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // The only capital that becomes two characters.
  std::string result;
  for (std::size_t offset = 0; offset < text.size();) {
    const CodePoint point = first_character(std::string_view(text).substr(offset));
    offset += point.bytes;
    if (point.value == kCapitalIWithDot) {
      result += "i\u0307";
    } else {
      result += utf8_of(
          static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point.value))));
    }
  }
  return result;
}

}  // namespace

BertText::BertText(const BertTextOptions& options) : options_(options) {
  for (std::size_t i = 0; i < ascii_.size(); ++i) {
    auto character = static_cast<char32_t>(i);
    if (options.lowercase) character = ascii_lower(character);
    if (options.clean_text && is_white_space(character)) character = ' ';
    ascii_[i] = options.clean_text && is_dirt(static_cast<char32_t>(i))
                    ? kLeftOut
                    : static_cast<char>(character);
  }
}

std::string BertText::normalize(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  // ASCII characters neither compose with the characters before them nor get reordered. So the
  // stretches between them can be normalized separately.
  while (!text.empty()) {
    const bool is_first_ascii = is_ascii(text.front());
    const auto end =
        std::ranges::find_if(text, [&](char byte) { return is_ascii(byte) != is_first_ascii; });
    const auto size = static_cast<std::size_t>(end - text.begin());
    if (is_first_ascii) {
      append_ascii(text.substr(0, size), result);
    } else {
      append_others(text.substr(0, size), result);
    }
    text.remove_prefix(size);
  }
  return result;
}

void BertText::append_ascii(std::string_view text, std::string& result) const {
  for (const char byte : text) {
    const char becomes = ascii_[static_cast<unsigned char>(byte)];
    if (becomes != kLeftOut) result.push_back(becomes);
  }
}

void BertText::append_others(std::string_view text, std::string& result) const {
  std::string stretch;
  while (!text.empty()) {
    const CodePoint point = first_character(text);
    const std::string_view character = text.substr(0, point.bytes);
    text.remove_prefix(std::max<std::size_t>(point.bytes, 1));
    if (point.bytes == 0 || (options_.clean_text && is_dirt(point.value))) continue;
    if (options_.clean_text && is_white_space(point.value)) {
      stretch += ' ';
    } else if (options_.handle_chinese_chars && is_chinese(point.value)) {
      stretch += ' ';
      stretch += character;
      stretch += ' ';
    } else {
      stretch += character;
    }
  }
  if (options_.strip_accents) stretch = without_accents(stretch);
  result += options_.lowercase ? lower_case(stretch) : stretch;
}

std::string_view next_bert_word(std::string_view& rest) {
  std::size_t begin = 0;
  std::size_t end = 0;
  while (end < rest.size()) {
    const CodePoint point = first_character(rest.substr(end));
    const bool is_space = is_white_space(point.value);
    if (begin == end) {
      end += point.bytes;
      if (is_space) {
        begin = end;
      } else if (is_punctuation(point.value)) {
        break;
      }
    } else {
      if (is_space || is_punctuation(point.value)) break;
      end += point.bytes;
    }
  }
  const std::string_view word = rest.substr(begin, end - begin);
  rest.remove_prefix(end);
  return word;
}

}  // namespace trireme::data::detail
