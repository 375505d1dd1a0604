// SPDX-License-Identifier: Apache-2.0
// Texts about checkpoints, for people.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// What a checkpoint, or a safetensors file, has: where the run stood, its files, every tensor with
/// dtype, shape and number of parts, names and sizes of its entries. Reads the index alone; throws
/// CheckpointError.
std::string describe_checkpoint(const std::filesystem::path& path);

/// A line for each thing in which two checkpoints differ: tensors that one of them lacks, shapes,
/// dtypes, values (how many, and the largest difference), entries, epoch and step. Who wrote which
/// part makes no difference. Empty where they are the same bit for bit. Throws CheckpointError.
std::vector<std::string> differences(const std::filesystem::path& one,
                                     const std::filesystem::path& other);

}  // namespace trireme::checkpoint
