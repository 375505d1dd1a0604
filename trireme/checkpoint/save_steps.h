// SPDX-License-Identifier: Apache-2.0
// The two steps of save_parts(): selecting the parts that this rank writes, and writing them.
// Internal to this component.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/copy_on_write.h>
#include <trireme/checkpoint/file_layer.h>
#include <trireme/checkpoint/index.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Returns the parts that this rank writes. Parts that several ranks hold are distributed among
/// them: the largest first, each to the rank that has the least so far. All ranks compute the same
/// result. Not collective.
std::vector<TensorPart> choose_own(const std::vector<TensorPart>& parts, const comm::Group& group);

/// Applies SaveOptions::leave_out to the content of a rank, records the names, and then selects the
/// parts that this rank writes.
void choose_own(const SaveOptions& options, const comm::Group& group, Content& content);

/// What save_own() is given where it does not save the tensors of a program that waits for it.
struct SaveSources {
  /// Replace the entries `own` of the ranks when an existing checkpoint is rewritten.
  const std::vector<Entries>* of_ranks = nullptr;
  /// Has the tensors of the parts, which training goes on to use.
  CopyOnWrite* tensors = nullptr;
};

/// Saves what `own` returns on each rank, which choose_own() has selected. Collective; see
/// save_parts().
std::filesystem::path save_own(const SaveOptions& options, const std::function<Content()>& own,
                               const comm::Group& group, const SaveSources& sources = {});

/// The number of bytes under one checksum. It is small enough that reading a slice reads little
/// else, and large enough that checksums take no significant space.
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

/// Writes and flushes the safetensors file `folder/name`, and adds it and its tensors to the index.
/// Whole tensors keep their names; parts are named `name[begin, end)`. All parts belong to one
/// section.
/// @param tensors_of_parts has the tensors of the parts, or is null.
void write_part_file(const std::filesystem::path& folder, const std::string& name,
                     const std::vector<TensorPart>& parts, FileLayer& files, Index& index,
                     CopyOnWrite* tensors_of_parts);

}  // namespace trireme::checkpoint
