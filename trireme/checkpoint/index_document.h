// SPDX-License-Identifier: Apache-2.0
// What the sources of index.h share. Internal to this room.
#pragma once

#include <trireme/checkpoint/index.h>
#include <trireme/checkpoint/safetensors.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace trireme::checkpoint {

inline constexpr auto kStateFile = "state.json";  // of format 1

[[noreturn]] void throw_bad_file(
    const std::filesystem::path& file, const std::string& what,
    std::string_view hint = "restore it from a good copy, or load another checkpoint");

// What state.json says.
struct StateOfFormat1 {
  State state;
  std::map<std::string, FileDigest> files;
};

// Its checksum is verified.
StateOfFormat1 read_state_of_format_1(const std::filesystem::path& file);

// Throws CheckpointError where pieces do not make up their tensor.
void check_cover(const std::string& name, const IndexedTensor& tensor, const std::string& where);

// See read_index.
Index index_of_format_1(const std::filesystem::path& folder);
Index index_of_file(const std::filesystem::path& file);

}  // namespace trireme::checkpoint
