// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>

#include <system_error>

namespace trireme {
namespace {

std::string with_hint(const std::string& message, std::string_view hint) {
  if (hint.empty()) return message;
  return join_message(message, "\n  hint: ", hint);
}

}  // namespace

Error::Error(const std::string& message, std::string_view hint, std::source_location where)
    : std::runtime_error(with_hint(message, hint)), where_(where) {}

std::string describe_errno(int error_number) {
  return join_message(std::generic_category().message(error_number), " (errno ", error_number, ")");
}

}  // namespace trireme
