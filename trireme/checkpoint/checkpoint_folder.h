// SPDX-License-Identifier: Apache-2.0
// Checkpoints as folders `prefix-<epoch>_<step>` inside one folder: their names, which there are,
// which to keep, and how a new one appears whole or not at all. What is in them is checkpoint.h's
// business. One process owns the folders of a prefix: only it may write and remove them; any may
// read.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/checkpoint/file_layer.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Returns `prefix-<epoch>_<step>`. Throws UsageError for a prefix that is empty, hidden or has a
/// slash, and for negative numbers.
std::string checkpoint_name(const std::string& prefix, std::int64_t epoch, std::int64_t step);

/// Returns the complete checkpoints of a prefix in the order in which they were written, the newest
/// last: each carries its number in a file `order`, clocks play no part. Those without this file
/// count as the oldest, by epoch and step. One whose number cannot be read, or is another one in
/// its index, is passed over with a warning on standard error: nobody can tell whether it is newer
/// than others, so that it is neither the latest nor removed. Throws CheckpointError where the
/// machine refuses to read a number now (permissions, an I/O error, no descriptors): that one may
/// be the newest. Empty where the folder does not exist.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder,
                                                    const std::string& prefix);

/// Returns the complete checkpoint that was written last, if there is one. After a run went on from
/// an older one that is the new run's, whatever the abandoned one had reached.
std::optional<std::filesystem::path> latest(const std::filesystem::path& folder,
                                            const std::string& prefix);

/// Removes a checkpoint. For the owner only. Killed on the way it leaves no half checkpoint that a
/// reader could take for a whole one.
void remove_checkpoint(const std::filesystem::path& path, FileLayer& files = system_files());

/// Removes what writers of this prefix that were killed left behind; a writer at work is left
/// alone, and so are all of other prefixes. Throws CheckpointError where the file system refuses,
/// having removed what it could.
void remove_leftovers(const std::filesystem::path& folder, const std::string& prefix,
                      FileLayer& files = system_files());

/// Name of the file with a checkpoint's number among those of its prefix.
inline constexpr auto kOrderFile = "order";

/// A checkpoint under construction: a hidden folder that `commit()` gives its name. Without a
/// commit the destructor removes it. Not thread-safe.
class CheckpointFolderWriter {
 public:
  /// Makes `folder` where it is missing. An earlier checkpoint whose number cannot be read is a
  /// warning on standard error; the new one is numbered past all that can be read. Throws
  /// CheckpointError with path and cause where the file system refuses.
  CheckpointFolderWriter(const std::filesystem::path& folder, const std::string& prefix,
                         std::int64_t epoch, std::int64_t step, FileLayer& files = system_files());
  CheckpointFolderWriter(const CheckpointFolderWriter&) = delete;
  CheckpointFolderWriter& operator=(const CheckpointFolderWriter&) = delete;
  ~CheckpointFolderWriter();

  /// Place for the files; write each with OutputFile, which flushes it.
  const std::filesystem::path& path() const { return temporary_; }

  /// Which of its prefix this checkpoint is, counted from 1.
  std::int64_t order() const { return order_; }

  /// Makes the checkpoint visible and returns its path; blocking until the disk has it. A
  /// checkpoint of the same name is exchanged for the new one in one step; where it cannot be
  /// removed then, it stays under a hidden name for remove_leftovers.
  std::filesystem::path commit();

 private:
  void remove_hidden();

  FileLayer& files_;
  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  bool is_made_ = false;  // and is to be removed
  std::int64_t order_ = 1;
  UniqueFd lock_;  // held while this writer lives; the kernel frees it when the process dies
};

}  // namespace trireme::checkpoint
