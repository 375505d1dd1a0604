// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/input_file.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

namespace trireme {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

InputFile open_input(const std::filesystem::path& path) {
  InputFile input;
  const auto fail = [&](int error_number) {
    input.file.reset();
    input.error_number = error_number;
    input.problem = join_message("cannot be opened: ", describe_errno(error_number));
  };
  // The kind is checked before opening, because opening a device can have effects: a terminal may
  // become the controlling terminal, a tape may rewind. O_NONBLOCK covers a FIFO that replaces the
  // file between the two calls.
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    fail(errno);
    return input;
  }
  if (S_ISREG(status.st_mode)) {
    input.file.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!input.file || ::fstat(input.file.get(), &status) != 0) {
      fail(errno);
      return input;
    }
  }
  if (!S_ISREG(status.st_mode)) {
    input.file.reset();
    input.problem = join_message("is ", kind_of(status.st_mode), ", expected a regular file");
    return input;
  }
  input.bytes = status.st_size;
  return input;
}

std::optional<std::string> read_text(InputFile& input, std::int64_t most) {
  if (!input.file) return std::nullopt;
  if (input.bytes > most) {
    input.problem = join_message("has ", input.bytes, " bytes, expected at most ", most);
    return std::nullopt;
  }
  std::string text(static_cast<std::size_t>(input.bytes), '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t count = ::read(input.file.get(), text.data() + length, text.size() - length);
    if (count < 0) {
      if (errno == EINTR) continue;
      input.error_number = errno;
      input.problem = join_message("cannot be read: ", describe_errno(errno));
      return std::nullopt;
    }
    if (count == 0) break;
    length += static_cast<std::size_t>(count);
  }
  text.resize(length);
  return text;
}

std::optional<std::string> read_any_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const bool is_empty = stream.peek() == std::ifstream::traits_type::eof() && !stream.bad();
  TextWriter text;
  if (!stream.is_open() || (!is_empty && !(text << stream.rdbuf()))) return std::nullopt;
  return text.str();
}

}  // namespace trireme
