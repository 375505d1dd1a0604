// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/warning.h>

#include <trireme/base/text.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace trireme::detail {
namespace {

void write_line(std::string text, std::string_view message) {
  for (std::size_t begin = 0; begin <= message.size();) {
    const std::size_t end = std::min(message.find('\n', begin), message.size());
    text += printable(message.substr(begin, end - begin)) + '\n';
    begin = end + 1;
  }
  // One call, so that lines of several threads do not mix.
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

void write_warning(std::string_view message) { write_line("trireme: warning: ", message); }
void write_note(std::string_view message) { write_line("trireme: ", message); }

}  // namespace trireme::detail
