// SPDX-License-Identifier: Apache-2.0
// Writes one file with parts of tensors, and says where they lie. Internal to this component.
#pragma once

#include <trireme/checkpoint/file_layer.h>
#include <trireme/checkpoint/index.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

// Bytes under one checksum: few enough that a reader of a slice reads little beside it, enough that
// checksums take no room.
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

// Writes `folder/name`, a safetensors file, flushed, and adds it and its tensors to the index.
// Parts that are whole have their own names, others `name[begin, end)`. All are of one section.
void write_part_file(const std::filesystem::path& folder, const std::string& name,
                     const std::vector<TensorPart>& parts, FileLayer& files, Index& index);

}  // namespace trireme::checkpoint
