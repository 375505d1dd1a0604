// SPDX-License-Identifier: Apache-2.0
// Makes indices for data without one: folders of format 1, and single safetensors files.
#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/checkpoint/index_document.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/read_bytes.h>
#include <trireme/checkpoint/safetensors_format.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

// A block size for one checksum per tensor; a multiple of the size of every element.
constexpr std::int64_t kWholeTensors = std::int64_t{1} << 62;

// Adds the tensors of a file to a section, each as one whole piece.
Metadata add_file(const fs::path& folder, const std::string& name, const std::string& section,
                  Index& index) {
  FileHeader header = read_header(folder / name);
  index.files[name] = {.bytes = header.file_bytes,
                       .header_bytes = header.header_bytes,
                       .header_crc32 = header.header_crc32};
  Section& tensors = index.sections[section];
  for (HeaderTensor& tensor : header.tensors) {
    Piece piece{
        .file = name, .offset = tensor.begin, .slice = whole(tensor.shape), .checksums = {}};
    if (const auto found = header.checksums.find(tensor.name); found != header.checksums.end()) {
      const std::string& digits = found->second;
      std::uint32_t value = 0;
      const char* const end = digits.data() + digits.size();
      const auto parsed = std::from_chars(digits.data(), end, value, 16);
      if (parsed.ec != std::errc{} || parsed.ptr != end) {
        throw_bad_file(folder / name,
                       join_message("has '", digits, "' for the checksum of tensor '", tensor.name,
                                    "', expected hexadecimal digits"));
      }
      if (tensor.end > tensor.begin) piece.checksums = {value};
    }
    IndexedTensor& indexed = tensors[tensor.name];
    indexed = {.dtype = tensor.type, .shape = std::move(tensor.shape), .pieces = {}};
    if (tensor.end > tensor.begin) indexed.pieces.push_back(std::move(piece));
  }
  return std::move(header.metadata);
}

std::uint32_t checksum_of_file(int handle, const fs::path& file, std::int64_t bytes) {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(bytes, kAtOnce)));
  std::uint32_t crc = 0;
  for (std::int64_t offset = 0; offset < bytes; offset += kAtOnce) {
    const auto part =
        std::span(block).first(static_cast<std::size_t>(std::min(bytes - offset, kAtOnce)));
    if (const auto failure = read_bytes(handle, offset, part, crc)) {
      throw_bad_file(file, describe(*failure), hint(*failure));
    }
  }
  return crc;
}

// Compares size and checksum of a file with state.json.
void check_file(const fs::path& file, const FileDigest& expected) {
  const std::int64_t bytes = expected.bytes;
  const InputFile input = open_input(file);
  if (!input) throw_bad_file(file, input.problem);
  if (input.bytes != bytes) {
    throw_bad_file(file, join_message(input.bytes < bytes ? "is cut short" : "is too long",
                                      ": it has ", input.bytes, " bytes, expected ", bytes));
  }
  if (checksum_of_file(input.file.get(), file, bytes) != expected.crc32) {
    throw_bad_file(file, "is damaged: its checksum is not the one in state.json");
  }
}

}  // namespace

Index index_of_format_1(const fs::path& folder) {
  StateOfFormat1 saved = read_state_of_format_1(folder / kStateFile);
  Index index;
  index.format = 1;
  index.block_bytes = kWholeTensors;
  index.state = std::move(saved.state);
  Entries own;
  for (const auto& [name, digest] : saved.files) {
    check_file(folder / name, digest);
    const std::string section = fs::path(name).stem();
    const Metadata metadata = add_file(folder, name, section, index);
    if (const auto found = metadata.find(kOptimizerScalars); found != metadata.end()) {
      own[kOptimizerScalars] = found->second;
    }
  }
  index.state.of_ranks.push_back(std::move(own));
  return index;
}

Index index_of_file(const fs::path& file) {
  Index index;
  index.format = 0;
  index.block_bytes = kWholeTensors;
  add_file(file.parent_path(), file.filename(), "model", index);
  return index;
}

}  // namespace trireme::checkpoint
