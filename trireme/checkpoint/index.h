// SPDX-License-Identifier: Apache-2.0
// The file index.json: the content of a checkpoint and its location. docs/formats/checkpoint.md
// describes it.
#pragma once

#include <trireme/checkpoint/run_state.h>
#include <trireme/checkpoint/tensor_part.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

inline constexpr auto kIndexFile = "index.json";

/// A part of a tensor in one of the files.
struct Piece {
  /// The name of the file in the folder of the checkpoint.
  std::string file;
  std::int64_t offset = 0;  ///< The offset of the first byte in the file.
  /// The elements of the tensor that the piece contains.
  Slice slice{};
  /// The CRC-32 of each block of `Index::block_bytes`; the last block may be shorter. Empty if the
  /// file was written by another program and has no checksums.
  std::vector<std::uint32_t> checksums{};
};

/// A tensor of a checkpoint and its pieces.
struct IndexedTensor {
  at::ScalarType dtype = at::kFloat;
  /// The shape of the whole tensor.
  std::vector<std::int64_t> shape{};
  /// The pieces, which do not overlap and cover the tensor; none if it has no elements. Either all
  /// are ranges of one order, or all are boxes and ranges of boxes, where the ranges of one box
  /// have one order.
  std::vector<Piece> pieces{};
};

struct IndexedFile {
  std::int64_t bytes = 0;          ///< The size of the file.
  std::int64_t header_bytes = 0;   ///< The size of its header.
  std::uint32_t header_crc32 = 0;  ///< The CRC-32 of its header.
};

using Section = std::map<std::string, IndexedTensor>;

/// The content of index.json.
struct Index {
  int format = 2;  ///< The format: 2, 1, or 0 for a single safetensors file.
  /// The number of the checkpoint among those of its prefix; 0 if unknown.
  std::int64_t order = 0;
  /// The time of writing in seconds since 1970; 0 if unknown.
  std::int64_t written_at = 0;
  std::optional<double> score;               ///< The score for Retention::best.
  std::int64_t block_bytes = 0;              ///< The number of bytes under one checksum.
  State state;                               ///< The state of the run.
  std::map<std::string, IndexedFile> files;  ///< The files by name.
  std::map<std::string, Section> sections;   ///< The tensors by section.
  /// Names of tensors that were not saved, by section; see SaveOptions::leave_out.
  std::map<std::string, std::set<std::string>> left_out;
};

/// Returns the name of a dtype in files, such as `F32`.
std::string_view dtype_name(at::ScalarType dtype);

/// Returns the text of an index. Throws UsageError for names that are not UTF-8.
std::string write_index(const Index& index);

/// Reads and verifies the index of a checkpoint of format 2 or 1; for format 1, its files are
/// verified too. For a single safetensors file, returns an index with its tensors in the section
/// `model`. Throws CheckpointError.
Index read_index(const std::filesystem::path& path);

/// Returns the index of one rank's files as text for rank 0, which calls join_indices().
std::string describe_own(const Index& own);
/// Joins the indices of all ranks. Throws CheckpointError if ranks disagree on a tensor, or their
/// pieces do not cover it.
Index join_indices(const std::vector<std::string>& by_rank);

}  // namespace trireme::checkpoint
