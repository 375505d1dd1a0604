// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/json_depth.h>

#include <algorithm>

namespace trireme {

std::size_t json_depth(std::string_view text) {
  std::size_t depth = 0;
  // Brackets inside strings do not count, and a backslash escapes the next character.
  std::size_t deepest = 0;
  bool is_text = false;
  for (std::size_t place = 0; place < text.size(); ++place) {
    const char letter = text[place];
    if (is_text) {
      if (letter == '\\') ++place;
      if (letter == '"') is_text = false;
    } else if (letter == '"') {
      is_text = true;
    } else if (letter == '[' || letter == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((letter == ']' || letter == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace trireme
