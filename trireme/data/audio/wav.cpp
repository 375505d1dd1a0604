// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/audio/wav.h>

#include <trireme/base/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string_view>

namespace trireme::data::detail {
namespace {

// A program that writes to a pipe cannot go back to fill in the length. It writes 0 or the largest
// possible number.
bool is_unknown(std::uint32_t bytes) { return bytes == 0 || bytes >= 0x7FFFF000; }

// Name and little-endian length of a chunk.
struct ChunkHead {
  std::array<char, 8> bytes{};

  std::string_view name() const { return {bytes.data(), 4}; }
  std::uint32_t length() const {
    std::uint32_t value = 0;
    for (std::size_t i = 8; i-- > 4;) value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
    return value;
  }
};

}  // namespace

void check_wav_is_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::uint64_t there = std::filesystem::file_size(path);
  ChunkHead head;
  std::array<char, 4> kind{};
  file.read(head.bytes.data(), head.bytes.size());
  file.read(kind.data(), kind.size());
  if (!file || head.name() != "RIFF" || std::string_view(kind.data(), kind.size()) != "WAVE")
    return;
  std::uint64_t offset = 12;
  while (file.read(head.bytes.data(), head.bytes.size())) {
    offset += head.bytes.size();
    const bool is_data = head.name() == "data";
    if (is_data && is_unknown(head.length())) return;
    if (head.length() > there - offset) {
      throw DataError(
          join_message(path.string(), ": offset ", offset, ": the chunk '", head.name(), "' has ",
                       there - offset, " bytes, but its header promises ", head.length()),
          "the file is cut short: get it anew");
    }
    if (is_data) return;
    offset += head.length() + head.length() % 2;  // Chunks begin at even offsets.
    file.seekg(static_cast<std::streamoff>(offset));
  }
}

}  // namespace trireme::data::detail
