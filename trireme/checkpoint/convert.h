// SPDX-License-Identifier: Apache-2.0
// Converts checkpoints to a single file, a file to a checkpoint, and older formats to the present
// one.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/safetensors.h>

#include <filesystem>
#include <string>

namespace trireme::checkpoint {

/// Writes one section of a checkpoint as a single safetensors file with whole tensors, which
/// Python's safetensors package can read.
///
/// The checkpoint may have been written by any number of ranks. Holds one tensor in memory at a
/// time. Throws CheckpointError, also if the section does not exist.
FileDigest export_safetensors(const std::filesystem::path& checkpoint,
                              const std::filesystem::path& file,
                              const std::string& section = "model");

/// Rewrites a checkpoint as one of the present format and of one rank, and returns its path.
///
/// `source` is a checkpoint of this format or an older one, or a safetensors file, which contains a
/// model only. Epoch, step and entries are kept. Needs memory for all tensors. Throws
/// CheckpointError.
std::filesystem::path convert(const std::filesystem::path& source, const SaveOptions& options);

}  // namespace trireme::checkpoint
