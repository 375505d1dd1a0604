// SPDX-License-Identifier: Apache-2.0
// Descriptions of checkpoints as text.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Returns a description of a checkpoint or safetensors file: epoch and step, files, entries, and
/// every tensor with dtype, shape and number of parts. Reads the index only. Throws
/// CheckpointError.
std::string describe_checkpoint(const std::filesystem::path& path);

/// Returns one line for each difference between two checkpoints: missing tensors, shapes, dtypes,
/// values (how many and the largest difference), entries, epoch and step. How tensors are divided
/// into parts does not matter. Returns an empty list if they are bitwise equal. Throws
/// CheckpointError.
std::vector<std::string> differences(const std::filesystem::path& one,
                                     const std::filesystem::path& other);

}  // namespace trireme::checkpoint
