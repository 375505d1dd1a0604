// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders named `prefix-<epoch>_<step>`: their names, listing, removal and atomic
// publication. checkpoint.h handles their content. One process owns the folders of a prefix: only
// it may write and remove them. Any process may read them.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/checkpoint/file_layer.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Returns `prefix-<epoch>_<step>`. Throws UsageError if the prefix is empty, begins with a dot or
/// contains a slash, and for negative numbers.
std::string checkpoint_name(const std::string& prefix, std::int64_t epoch, std::int64_t step);

/// Returns the complete checkpoints of a prefix in the order in which they were written, the newest
/// last.
///
/// The order is that of the numbers in the files `order`; clocks are not used. Checkpoints without
/// this file come first, sorted by epoch and step. A checkpoint whose number cannot be read, or
/// differs from the one in its index, is skipped with a warning on standard error. It is not known
/// whether it is the newest, so it is neither loaded as the latest nor removed. Returns an empty
/// list if the folder does not exist.
/// @throws CheckpointError if reading a number fails (permissions, an I/O error, no descriptors),
/// because that checkpoint may be the newest.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder,
                                                    const std::string& prefix);

/// Returns the complete checkpoint that was written last, or nullopt. If a run continued from an
/// older checkpoint, this is the checkpoint of the new run, even if the abandoned run had reached a
/// later step.
std::optional<std::filesystem::path> latest(const std::filesystem::path& folder,
                                            const std::string& prefix);

/// Removes a checkpoint. Only the owner of the prefix may call it. If the process is killed
/// meanwhile, no partial checkpoint remains that a reader could take for a complete one.
void remove_checkpoint(const std::filesystem::path& path, FileLayer& files = system_files());

/// Removes what killed writers of this prefix left behind. Writers that are running and other
/// prefixes are not affected. Throws CheckpointError if a file operation fails, after removing
/// everything else.
void remove_leftovers(const std::filesystem::path& folder, const std::string& prefix,
                      FileLayer& files = system_files());

/// The name of the file with the number of a checkpoint among those of its prefix.
inline constexpr auto kOrderFile = "order";

/// A checkpoint that is being written: a hidden folder that commit() renames. The destructor
/// removes it if commit() was not called. Not thread-safe.
class CheckpointFolderWriter {
 public:
  /// Creates the hidden folder, and `folder` if it does not exist. Throws CheckpointError with path
  /// and cause if a file operation fails. If the number of an earlier checkpoint cannot be read,
  /// prints a warning; the new number is higher than all that can be read.
  CheckpointFolderWriter(const std::filesystem::path& folder, const std::string& prefix,
                         std::int64_t epoch, std::int64_t step, FileLayer& files = system_files());
  CheckpointFolderWriter(const CheckpointFolderWriter&) = delete;
  CheckpointFolderWriter& operator=(const CheckpointFolderWriter&) = delete;
  ~CheckpointFolderWriter();

  /// Returns the folder to write the files to. Write each with OutputFile, which flushes it.
  const std::filesystem::path& path() const { return temporary_; }

  /// Returns the number of this checkpoint among those of its prefix, from 1.
  std::int64_t order() const { return order_; }

  /// Publishes the checkpoint and returns its path. Blocks until it is on disk.
  ///
  /// An existing checkpoint of the same name is replaced atomically. If the old one cannot be
  /// removed afterwards, it keeps a hidden name, under which remove_leftovers() finds it.
  std::filesystem::path commit();

 private:
  void remove_hidden();

  FileLayer& files_;
  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  // True if the destructor must remove the hidden folder.
  bool is_made_ = false;
  std::int64_t order_ = 1;
  // A lock on the folder. The kernel releases it when the process dies.
  UniqueFd lock_;
};

}  // namespace trireme::checkpoint
