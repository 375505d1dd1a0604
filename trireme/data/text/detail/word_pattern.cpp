// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/word_pattern.h>

#include <trireme/base/error.h>
#include <trireme/data/text/detail/utf8.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <new>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8  // NOLINT(readability-identifier-naming): pcre2.h asks for it
#include <pcre2.h>

namespace trireme::data::detail {
namespace {

std::string pcre_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  ::pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

struct FreeCode {
  void operator()(pcre2_code* code) const { ::pcre2_code_free(code); }
};
struct FreeMatches {
  void operator()(pcre2_match_data* matches) const { ::pcre2_match_data_free(matches); }
};

}  // namespace

const std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct WordPattern::Compiled {
  std::string name;
  std::unique_ptr<pcre2_code, FreeCode> code;
};

WordPattern::WordPattern(std::string_view expression, std::string name) {
  const std::string own = with_white_space(expression);
  int failure = 0;
  PCRE2_SIZE offset = 0;
  std::unique_ptr<pcre2_code, FreeCode> code(
      ::pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(), PCRE2_UTF | PCRE2_UCP,
                      &failure, &offset, nullptr));
  if (!code) {
    throw DataError(join_message(name, ": the regular expression ", expression,
                                 " cannot be used: ", pcre_message(failure)),
                    "give one that PCRE2 understands");
  }
  // If PCRE2 has no JIT compiler for this processor, it interprets the expression.
  ::pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  compiled_ = std::make_unique<const Compiled>(Compiled{std::move(name), std::move(code)});
}

WordPattern::WordPattern(WordPattern&& other) noexcept = default;
WordPattern& WordPattern::operator=(WordPattern&& other) noexcept = default;
WordPattern::~WordPattern() = default;

struct WordScanner::Matches {
  std::unique_ptr<pcre2_match_data, FreeMatches> data;
};

WordScanner::WordScanner(const WordPattern& pattern)
    : compiled_(pattern.compiled_.get()), matches_(std::make_unique<Matches>()) {
  matches_->data.reset(::pcre2_match_data_create(1, nullptr));
  if (!matches_->data) throw std::bad_alloc();
}

WordScanner::WordScanner(WordScanner&& other) noexcept = default;
WordScanner& WordScanner::operator=(WordScanner&& other) noexcept = default;
WordScanner::~WordScanner() = default;

void WordScanner::begin(std::string_view text) {
  text_ = text;
  done_ = stretch_begin_ = stretch_end_ = match_begin_ = match_end_ = 0;
}

std::string_view WordScanner::take(std::size_t end) {
  const std::string_view word = text_.substr(done_, end - done_);
  done_ = end;
  return word;
}

std::optional<std::string_view> WordScanner::next() {
  if (done_ == text_.size()) return std::nullopt;
  if (done_ == stretch_end_) {
    if (const std::size_t bytes = invalid_bytes(text_.substr(done_)); bytes > 0) {
      stretch_end_ = match_end_ = done_ + bytes;
      return take(stretch_end_);
    }
    stretch_begin_ = done_;
    stretch_end_ = done_ + valid_bytes(text_.substr(done_));
  }
  if (done_ >= match_end_) find_match();
  return take(done_ < match_begin_ ? match_begin_ : match_end_);
}

// Finds the next match; without one, the rest of the stretch counts as a match.
void WordScanner::find_match() {
  const auto* stretch = reinterpret_cast<PCRE2_SPTR>(text_.data() + stretch_begin_);
  const auto match = [&](std::uint32_t options) {
    return ::pcre2_match(compiled_->code.get(), stretch, stretch_end_ - stretch_begin_,
                         done_ - stretch_begin_, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | options,
                         matches_->data.get(), nullptr);
  };
  int found = match(0);
  // JIT code has a small stack; the interpreter uses the heap.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
  if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
    throw DataError(join_message(compiled_->name, ": the regular expression fails at offset ",
                                 done_, " of a text: ", pcre_message(found)),
                    "use a simpler expression, or shorter texts");
  }
  match_begin_ = done_;
  match_end_ = stretch_end_;
  if (found < 0) return;
  const PCRE2_SIZE* const ends = ::pcre2_get_ovector_pointer(matches_->data.get());
  // `\K` may move the beginning of a match before the current position; such a match is not a word.
  if (ends[0] < done_ - stretch_begin_ || ends[1] <= ends[0]) return;
  match_begin_ = stretch_begin_ + ends[0];
  match_end_ = stretch_begin_ + ends[1];
}

std::string with_white_space(std::string_view expression) {
  constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
  std::string own;
  const auto copy = [&](std::size_t bytes) {
    own += expression.substr(0, bytes);
    expression.remove_prefix(std::min(bytes, expression.size()));
  };
  bool is_in_class = false;
  while (!expression.empty()) {
    const std::string_view two = expression.substr(0, 2);
    if (two == "\\s" && is_in_class) {
      own += kSpaces;
      expression.remove_prefix(2);
    } else if (two == "\\s" || (two == "\\S" && !is_in_class)) {
      own += join_message(two == "\\s" ? "[" : "[^", kSpaces, "]");
      expression.remove_prefix(2);
    } else if (two[0] == '\\') {
      copy(2);
    } else if (is_in_class && two == "[:") {
      copy(std::min(expression.find(":]"), expression.size()) + 2);
    } else if (!is_in_class && two[0] == '[') {
      is_in_class = true;
      copy(two == "[^" ? 2 : 1);
      if (expression.starts_with(']')) copy(1);  // An ordinary character in this place.
    } else {
      if (two[0] == ']') is_in_class = false;
      copy(1);
    }
  }
  return own;
}

std::string quoted_expression(std::string_view text) {
  std::string expression;
  for (const char byte : text) {
    if (std::ispunct(static_cast<unsigned char>(byte)) != 0) expression.push_back('\\');
    expression.push_back(byte);
  }
  return expression;
}

}  // namespace trireme::data::detail
