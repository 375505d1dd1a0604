// SPDX-License-Identifier: Apache-2.0
// Files sorted into a folder for each class, as torchvision's DatasetFolder reads them.
// images/image_folder.h and audio/audio_folder.h are of this kind.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// A data set of files, one for each sample.
class ClassFolders : public Dataset {
 public:
  /// Returns the names of the classes: that of label i is at i.
  virtual const std::vector<std::string>& classes() const = 0;

  /// Returns the file of a sample. Throws UsageError unless 0 <= index < size().
  virtual std::filesystem::path file(std::int64_t index) const = 0;
};

/// What the files are. Both functions may be called concurrently.
struct FileKind {
  std::string description;           ///< For messages: "images (JPEG, PNG)".
  std::vector<std::string> columns;  ///< What `load` returns, in this order.

  /// Whether a file is a sample; others are left out.
  std::function<bool(const std::filesystem::path& file)> is_sample;

  /// Reads a file when its sample is asked for.
  std::function<std::vector<at::Tensor>(const std::filesystem::path& file)> load;
};

/// Lists `root/<class>/…/<file>`. The folders in `root`, sorted by name, are the classes 0, 1 and
/// so on; the files of a class may lie in folders below its own, and are sorted by folder, then by
/// name. Links are followed. The numbers of classes and samples are those of torchvision's
/// DatasetFolder. Columns: those of the kind, and "label" int64 []. The files are listed once,
/// here, and read when they are asked for.
///
///     class_folders("spectra", {"spectra (.npy)", {"spectrum"},
///                               [](const auto& file) { return file.extension() == ".npy"; },
///                               [](const auto& file) { return std::vector{read_npy(file)}; }});
///
/// Throws DataError where there is no such folder, no class in it, a class without a sample, or a
/// folder that cannot be read; UsageError where a function is missing or names repeat. get() throws
/// what `load` throws, and UsageError where it returns another number of tensors.
std::shared_ptr<const ClassFolders> class_folders(const std::filesystem::path& root, FileKind kind);

}  // namespace trireme::data
