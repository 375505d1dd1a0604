// SPDX-License-Identifier: Apache-2.0
// index.json: what a checkpoint has, and where. docs/formats/checkpoint.md describes it.
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

/// Part of a tensor in one of the files.
struct Piece {
  std::string file;
  std::int64_t offset = 0;  ///< of its first byte in the file
  Slice slice{};
  /// CRC-32 of each block of `Index::block_bytes`, the last one shorter; none where the file is of
  /// another writer and has no checksums.
  std::vector<std::uint32_t> checksums{};
};

struct IndexedTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape{};
  /// They do not overlap and make up the tensor; none where it has no elements. All are ranges of
  /// one order, or all are boxes and ranges of boxes, those of one box of one order.
  std::vector<Piece> pieces{};
};

struct IndexedFile {
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;
  std::uint32_t header_crc32 = 0;
};

using Section = std::map<std::string, IndexedTensor>;

struct Index {
  int format = 2;
  std::int64_t order = 0;       ///< which checkpoint of its prefix; 0 where that is not known
  std::int64_t written_at = 0;  ///< seconds since 1970; 0 where that is not known
  std::optional<double> score;
  std::int64_t block_bytes = 0;
  State state;
  std::map<std::string, IndexedFile> files;
  std::map<std::string, Section> sections;
  /// What the module had and the checkpoint has not, by section: see SaveOptions::leave_out.
  std::map<std::string, std::set<std::string>> left_out;
};

/// Name of a dtype as files have it, such as `F32`.
std::string_view dtype_name(at::ScalarType dtype);

/// The text of an index; throws UsageError for names that are not UTF-8.
std::string write_index(const Index& index);

/// Reads and verifies the index of a checkpoint, of this format or format 1, whose files are
/// verified with it; or of one safetensors file, whose tensors make up the section `model`. Throws
/// CheckpointError.
Index read_index(const std::filesystem::path& path);

/// What one rank wrote, as a text for rank 0, which puts all together. Throws CheckpointError where
/// ranks disagree on a tensor, or their pieces do not make up the whole.
std::string describe_own(const Index& own);
Index join_indices(const std::vector<std::string>& by_rank);

}  // namespace trireme::checkpoint
