// SPDX-License-Identifier: Apache-2.0
// Declarations shared by the sources of index.h. Internal to this component.
#pragma once

#include <trireme/checkpoint/index.h>
#include <trireme/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace trireme::checkpoint {

inline constexpr auto kStateFile = "state.json";  ///< The file of format 1.

/// The maximum size of an index: more than that of any checkpoint, which is 20 bytes per megabyte
/// of tensors.
inline constexpr std::int64_t kMostIndexBytes = std::int64_t{1} << 32;

/// Returns true if the name is that of a file in the same folder, and not a path.
bool is_file_name(std::string_view name);

/// Throws CheckpointError about a file.
[[noreturn]] void throw_bad_file(
    const std::filesystem::path& file, const std::string& what,
    std::string_view hint = "restore it from a good copy, or load another checkpoint");

/// The content of state.json.
struct StateOfFormat1 {
  State state;                              ///< The state of the run.
  std::map<std::string, FileDigest> files;  ///< The size and checksum of each file.
};

/// Reads state.json and verifies its checksum.
StateOfFormat1 read_state_of_format_1(const std::filesystem::path& file);

/// Throws CheckpointError if the pieces do not cover their tensor exactly once.
void check_cover(const std::string& name, const IndexedTensor& tensor, const std::string& where);

/// Returns the index of a checkpoint of format 1; see read_index().
Index index_of_format_1(const std::filesystem::path& folder);
/// Returns the index of a single safetensors file; see read_index().
Index index_of_file(const std::filesystem::path& file);

}  // namespace trireme::checkpoint
