// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/part_file.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/safetensors_format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::checkpoint {
namespace {

// Writes block by block, while each block is still in the cache from computing its checksum.
std::vector<std::uint32_t> append_with_checksums(OutputFile& file,
                                                 std::span<const std::byte> bytes) {
  std::vector<std::uint32_t> checksums;
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(kBlockBytes)));
    checksums.push_back(crc32_of(block));
    file.append(block);
    bytes = bytes.subspan(block.size());
  }
  return checksums;
}

// Returns the checksum of all bytes from those of their blocks.
std::uint32_t join_all(const std::vector<std::uint32_t>& checksums, std::int64_t bytes) {
  std::uint32_t all = 0;
  for (const std::uint32_t checksum : checksums) {
    const std::int64_t block = std::min(bytes, kBlockBytes);
    all = join_crc32(all, checksum, block);
    bytes -= block;
  }
  return all;
}

std::string name_in_file(const TensorPart& part) {
  return is_whole(part.slice, part.shape) ? part.name : part.name + describe(part.slice);
}

}  // namespace

void write_part_file(const std::filesystem::path& folder, const std::string& name,
                     const std::vector<TensorPart>& parts, FileLayer& files, Index& index) {
  std::vector<HeaderTensor> tensors;
  std::map<std::string, const TensorPart*> by_name;
  std::map<std::string, std::uint32_t> checksums;
  for (const TensorPart& part : parts) {
    std::string own_name = name_in_file(part);
    check_storable(own_name, part.local);
    const bool keeps_shape = is_whole(part.slice, part.shape);
    tensors.push_back({.name = own_name,
                       .type = part.local.scalar_type(),
                       .shape = keeps_shape ? part.shape : part.local.sizes().vec()});
    checksums[own_name] = 0;
    if (!by_name.emplace(std::move(own_name), &part).second) {
      throw UsageError(
          join_message("the same part of tensor '", part.name, "' is to be saved twice"),
          "give each part once, and no two tensors of one name");
    }
  }
  sort_for_file(tensors);
  // The header comes first but contains the checksums. Its length does not depend on their values,
  // so its space is reserved and filled in at the end.
  const std::string room = encode_header(tensors, {}, checksums);

  OutputFile file(folder / name, files);
  file.skip(static_cast<std::int64_t>(room.size()));
  for (const HeaderTensor& tensor : tensors) {
    const TensorPart& part = *by_name.at(tensor.name);
    const at::Tensor values = dense(part.local);
    Piece piece{.file = name, .offset = tensor.begin, .slice = part.slice, .checksums = {}};
    piece.checksums = append_with_checksums(file, bytes_of(values));
    checksums[tensor.name] = join_all(piece.checksums, tensor.end - tensor.begin);
    IndexedTensor& indexed = index.sections[part.section][part.name];
    indexed.dtype = tensor.type;
    indexed.shape = part.shape;
    if (tensor.end > tensor.begin) indexed.pieces.push_back(std::move(piece));
  }
  const std::string header = encode_header(tensors, {}, checksums);
  TRIREME_CHECK_EQ(header.size(), room.size());
  file.write_at(0, std::as_bytes(std::span(header)));
  file.finish();
  index.files[name] = {
      .bytes = tensors.empty() ? static_cast<std::int64_t>(header.size()) : tensors.back().end,
      .header_bytes = static_cast<std::int64_t>(header.size()),
      .header_crc32 = crc32_of(std::as_bytes(std::span(header)))};
}

}  // namespace trireme::checkpoint
