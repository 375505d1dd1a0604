// SPDX-License-Identifier: Apache-2.0
// Reads and writes files in the safetensors format (https://github.com/huggingface/safetensors): a
// header length of eight bytes, a JSON header, the bytes of the tensors. Any reader can open the
// files written here. They also contain a CRC-32 per tensor in the metadata. Complex tensors are
// written as pairs of real numbers. Sparse, quantized and distributed tensors are rejected.
// docs/formats/checkpoint.md has the details.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Tensors by name.
using TensorMap = std::map<std::string, at::Tensor>;
/// Texts by name in the header of a file.
using Metadata = std::map<std::string, std::string>;

/// The size and CRC-32 (as gzip computes it) of a whole file.
struct FileDigest {
  std::int64_t bytes = 0;   ///< The size of the file.
  std::uint32_t crc32 = 0;  ///< The checksum of all bytes.
  /// Compares all members.
  bool operator==(const FileDigest&) const = default;
};

/// The content of a file.
struct TensorFile {
  TensorMap tensors;  ///< The tensors.
  Metadata metadata;  ///< The metadata, without the checksums.
  FileDigest digest;  ///< The size and checksum of the file.
};

/// Writes tensors and metadata to a file atomically, and returns its size and checksum.
///
/// Blocks until the file is on disk. Tensors that are on other devices or not contiguous are copied
/// one at a time. Equal arguments give equal bytes.
/// @throws UsageError for a tensor or name that the format cannot store.
/// @throws CheckpointError if a file operation fails or a tensor changes during the call; the
/// previous file then remains.
FileDigest write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                             const Metadata& metadata = {});

/// A tensor that is made when it is written, so that not all tensors are in memory at the same
/// time.
struct TensorSource {
  std::vector<std::int64_t> shape;     ///< The shape of the tensor.
  at::ScalarType dtype = at::kFloat;   ///< The dtype of the tensor.
  std::function<at::Tensor()> values;  ///< Called twice: for the checksum and for the bytes.
};
/// Sources by name.
using TensorSources = std::map<std::string, TensorSource>;

/// Writes tensors that are made one at a time; otherwise like write_safetensors().
FileDigest write_safetensors_from(const std::filesystem::path& path, const TensorSources& tensors,
                                  const Metadata& metadata = {});

/// Reads all tensors into new CPU memory and verifies the checksums in the file. Files of other
/// programs have none and are loaded as they are. Throws CheckpointError with file, tensor and
/// offset if the file is missing, truncated, inconsistent or damaged.
TensorFile read_safetensors(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
