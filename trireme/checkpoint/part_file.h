// SPDX-License-Identifier: Apache-2.0
// Writes one file with parts of tensors and adds their locations to an index. Internal to this
// component.
#pragma once

#include <trireme/checkpoint/file_layer.h>
#include <trireme/checkpoint/index.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// The number of bytes under one checksum. It is small enough that reading a slice reads little
/// else, and large enough that checksums take no significant space.
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

/// Writes and flushes the safetensors file `folder/name`, and adds it and its tensors to the index.
/// Whole tensors keep their names; parts are named `name[begin, end)`. All parts belong to one
/// section.
void write_part_file(const std::filesystem::path& folder, const std::string& name,
                     const std::vector<TensorPart>& parts, FileLayer& files, Index& index);

}  // namespace trireme::checkpoint
