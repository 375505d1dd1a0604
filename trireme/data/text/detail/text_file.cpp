// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/text_file.h>

#include <trireme/data/files/check_is_file.h>

#include <cerrno>
#include <fstream>

namespace trireme::data::detail {

std::string read_text(const std::filesystem::path& path) {
  check_is_file(path);
  std::string text(std::filesystem::file_size(path), '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    throw DataError(join_message(path.string(), " cannot be read: ", describe_errno(errno)),
                    "check the permissions of the file");
  }
  return text;
}

}  // namespace trireme::data::detail
