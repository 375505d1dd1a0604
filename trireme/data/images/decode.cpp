// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/images/decode.h>

#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/base/text.h>
#include <trireme/data/images/planes.h>
#include <trireme/data/images/signature.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iomanip>
#include <vector>

namespace trireme::data {
namespace {

[[noreturn]] void fail_reading(const std::filesystem::path& path, std::string_view problem) {
  throw DataError(join_message(path.string(), " ", problem),
                  "check the path and the permissions of the file");
}

// Reads the whole file. For files of this size, reading is faster than mapping, and a file that is
// truncated meanwhile cannot crash the process.
std::vector<std::byte> read_whole(const std::filesystem::path& path) {
  const InputFile input = open_input(path);
  if (!input) fail_reading(path, input.problem);
  std::vector<std::byte> bytes(static_cast<std::size_t>(input.bytes));
  std::size_t place = 0;
  while (place < bytes.size()) {
    const ssize_t count = ::read(input.file.get(), bytes.data() + place, bytes.size() - place);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail_reading(path, join_message("cannot be read: ", describe_errno(errno)));
    }
    if (count == 0) break;
    place += static_cast<std::size_t>(count);
  }
  bytes.resize(place);
  return bytes;
}

[[noreturn]] void refuse(std::span<const std::byte> bytes, std::string_view name) {
  TextWriter begin;
  for (const std::byte byte : bytes.first(std::min(bytes.size(), detail::kSignatureBytes)))
    begin << ' ' << std::hex << std::setw(2) << std::setfill('0') << std::to_integer<int>(byte);
  throw DataError(join_message(name, ": offset 0: neither JPEG nor PNG: ",
                               bytes.empty() ? "it is empty" : "it begins with", begin.str()),
                  "convert it to one of them, or take it out of the data set");
}

}  // namespace

void detail::require_image_decoders() {}

at::Tensor decode_image(std::span<const std::byte> bytes, const ImageOptions& options,
                        std::string_view name) {
  switch (detail::image_kind(bytes)) {
    case detail::ImageKind::kJpeg:
      return detail::decode_jpeg(bytes, options, name);
    case detail::ImageKind::kPng:
      return detail::decode_png(bytes, options, name);
    case detail::ImageKind::kUnknown:
      break;
  }
  refuse(bytes, name);
}

at::Tensor read_image(const std::filesystem::path& path, const ImageOptions& options) {
  return decode_image(read_whole(path), options, path.string());
}

}  // namespace trireme::data
