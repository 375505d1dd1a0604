// SPDX-License-Identifier: Apache-2.0
// What the sources of index.h share. Internal to this component.
#pragma once

#include <trireme/checkpoint/index.h>
#include <trireme/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace trireme::checkpoint {

inline constexpr auto kStateFile = "state.json";  // of format 1

// More than the index of any checkpoint has: 20 bytes for each megabyte of tensors.
inline constexpr std::int64_t kMostIndexBytes = std::int64_t{1} << 32;

// Whether it names a file beside the index, and not one elsewhere.
bool is_file_name(std::string_view name);

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
