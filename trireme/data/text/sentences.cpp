// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/sentences.h>

#include <trireme/base/error.h>
#include <trireme/data/text/detail/text_file.h>
#include <trireme/data/text/detail/utf8.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace trireme::data {
namespace {

std::string_view trimmed(std::string_view text) {
  for (;;) {
    const detail::CodePoint first = detail::first_character(text);
    if (first.bytes == 0 || !detail::is_white_space(first.value)) break;
    text.remove_prefix(first.bytes);
  }
  for (;;) {
    const detail::CodePoint last = detail::last_character(text);
    if (last.bytes == 0 || !detail::is_white_space(last.value)) return text;
    text.remove_suffix(last.bytes);
  }
}

// Returns true for characters that may stand between the end of a sentence and white space.
bool closes(char32_t character) {
  constexpr std::array<char32_t, 9> kClosing = {0x00AB, '"',    '\'',   ')', ']',
                                                0x2019, 0x201D, 0x00BB, '*'};
  return std::ranges::find(kClosing, character) != kClosing.end();
}

// Collects documents line by line.
class Collector {
 public:
  explicit Collector(TextForm form) : form_(form) {}

  void add(std::string_view line) {
    if (line.empty()) {
      ++empty_lines_;
      end_paragraph();
      if (form_ == TextForm::kSentences || empty_lines_ > 1) end_document();
      return;
    }
    empty_lines_ = 0;
    if (form_ == TextForm::kSentences) {
      document_.emplace_back(line);
    } else {
      if (!paragraph_.empty()) paragraph_ += ' ';
      paragraph_ += line;
    }
  }

  std::vector<Document> finish() {
    end_paragraph();
    end_document();
    return std::move(documents_);
  }

 private:
  void end_paragraph() {
    for (std::string& sentence : split_sentences(paragraph_)) {
      document_.push_back(std::move(sentence));
    }
    paragraph_.clear();
  }

  void end_document() {
    if (!document_.empty()) documents_.push_back(std::exchange(document_, {}));
  }

  TextForm form_;
  std::int64_t empty_lines_ = 0;
  std::string paragraph_;
  Document document_;
  std::vector<Document> documents_;
};

}  // namespace

std::vector<std::string> split_sentences(std::string_view paragraph) {
  std::vector<std::string> sentences;
  const auto keep = [&](std::string_view sentence) {
    sentence = trimmed(sentence);
    if (!sentence.empty()) sentences.emplace_back(sentence);
  };
  std::size_t begin = 0;
  bool may_end = false;  // after a mark that ends sentences, and what closes with it
  for (std::size_t at = 0; at < paragraph.size();) {
    const detail::CodePoint point = detail::first_character(paragraph.substr(at));
    const char32_t character = point.value;
    if (may_end && detail::is_white_space(character)) {
      keep(paragraph.substr(begin, at - begin));
      begin = at;
      may_end = false;
    } else if (character == '.' || character == '!' || character == '?') {
      may_end = true;
    } else {
      may_end = may_end && closes(character);
    }
    at += std::max<std::size_t>(point.bytes, 1);
  }
  keep(paragraph.substr(begin));
  return sentences;
}

std::vector<Document> read_documents(const std::filesystem::path& path, TextForm form) {
  const std::string text = detail::read_text(path);
  Collector collector(form);
  std::int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (detail::valid_bytes(line) < line.size()) {
      throw DataError(join_message(path.string(), ": line ", number, " is not UTF-8"),
                      "convert the file to UTF-8, for example by iconv, or leave it out");
    }
    collector.add(trimmed(line));
  }
  return collector.finish();
}

}  // namespace trireme::data
