// SPDX-License-Identifier: Apache-2.0
// Checkpoints into one file, one file into a checkpoint, and old formats into the present one.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/safetensors.h>

#include <filesystem>
#include <string>

namespace trireme::checkpoint {

/// Writes one section of a checkpoint, whatever ranks wrote it, to one safetensors file with whole
/// tensors, which Python's safetensors package reads. Holds one tensor in memory at a time. Throws
/// CheckpointError, also where there is no such section.
FileDigest export_safetensors(const std::filesystem::path& checkpoint,
                              const std::filesystem::path& file,
                              const std::string& section = "model");

/// Writes a checkpoint, of this format or an older one, or a safetensors file, which has a model
/// alone, anew as a checkpoint of one rank and returns its path. Epoch, step and what entries the
/// source has stay. Takes memory for all of it. Throws CheckpointError.
std::filesystem::path convert(const std::filesystem::path& source, const SaveOptions& options);

}  // namespace trireme::checkpoint
