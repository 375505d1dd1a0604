// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/plain_output.h>

#include <trireme/base/text.h>

namespace trireme::apps {

PlainOutput::~PlainOutput() {
  sync();
  stream_.rdbuf(target_);
}

PlainOutput::int_type PlainOutput::overflow(int_type letter) {
  if (traits_type::eq_int_type(letter, traits_type::eof())) return traits_type::not_eof(letter);
  const char given = traits_type::to_char_type(letter);
  if (given != '\n' && given != '\t') {
    pending_ += given;
    return letter;
  }
  const bool is_written = write() && target_->sputc(given) != traits_type::eof();
  return is_written ? letter : traits_type::eof();
}

int PlainOutput::sync() { return write() && target_->pubsync() == 0 ? 0 : -1; }

bool PlainOutput::write() {
  const std::string text = printable(pending_);
  pending_.clear();
  const auto length = static_cast<std::streamsize>(text.size());
  return target_->sputn(text.data(), length) == length;
}

}  // namespace trireme::apps
