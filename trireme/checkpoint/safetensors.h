// SPDX-License-Identifier: Apache-2.0
// Files of named tensors in the safetensors format (https://github.com/huggingface/safetensors):
// eight bytes of header length, a JSON header, the bytes of the tensors. Any reader of the format
// opens ours; ours also carry a CRC-32 per tensor in the header's metadata.
// docs/formats/checkpoint.md describes the details. Complex tensors are written as pairs of real
// numbers with a mark, by which they are complex again when they are read; sparse, quantized and
// distributed ones are refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::checkpoint {

using TensorMap = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

/// Size and CRC-32 (as gzip computes it) of a whole file.
struct FileDigest {
  std::int64_t bytes = 0;
  std::uint32_t crc32 = 0;
  bool operator==(const FileDigest&) const = default;
};

struct TensorFile {
  TensorMap tensors;
  Metadata metadata;
  FileDigest digest;
};

/// Writes tensors and metadata so that the file appears whole or not at all, and returns what was
/// written. Blocking until it is on the disk. Tensors on other devices or not contiguous are copied
/// one at a time, never all at once; equal arguments give equal bytes. Throws UsageError for a
/// tensor or name the format cannot hold, and CheckpointError where the file system refuses or a
/// tensor changes meanwhile; the previous file then stays.
FileDigest write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                             const Metadata& metadata = {});

/// A tensor that is made when it is written, so that not all need to be in memory at once.
struct TensorSource {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  std::function<at::Tensor()> values;  ///< called twice: for the checksum, and for the bytes
};
using TensorSources = std::map<std::string, TensorSource>;

FileDigest write_safetensors_from(const std::filesystem::path& path, const TensorSources& tensors,
                                  const Metadata& metadata = {});

/// Reads every tensor into new CPU memory and verifies the checksums that the file carries; files
/// of other writers have none and load as they are. Throws CheckpointError naming file, tensor and
/// offset for a file that is missing, cut short, inconsistent or damaged.
TensorFile read_safetensors(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
