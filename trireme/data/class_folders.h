// SPDX-License-Identifier: Apache-2.0
// Data sets of files that are sorted into one folder per class, like torchvision's DatasetFolder.
// images/image_folder.h and audio/audio_folder.h are built on this.
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

/// A data set with one file per sample and one folder per class.
class ClassFolders : public Dataset {
 public:
  /// Returns the names of the classes; the name of label i is at position i.
  virtual const std::vector<std::string>& classes() const = 0;

  /// Returns the path of a sample's file. Throws UsageError unless 0 <= index < size().
  virtual std::filesystem::path file(std::int64_t index) const = 0;
};

/// Describes the files of a data set and how to load them. Both functions may be called
/// concurrently.
struct FileKind {
  /// The kind of file, for error messages, such as "images (JPEG, PNG)".
  std::string description;
  /// The names of the tensors that `load` returns, in this order.
  std::vector<std::string> columns;

  /// Returns true if a file is a sample. Other files are ignored.
  std::function<bool(const std::filesystem::path& file)> is_sample;

  /// Loads a file. It is called each time the sample is requested.
  std::function<std::vector<at::Tensor>(const std::filesystem::path& file)> load;
};

/// Makes a data set of the files `root/<class>/…/<file>`.
///
/// The folders in `root`, sorted by name, are the classes 0, 1 and so on. The files of a class may
/// lie in nested folders; they are sorted by folder, then by name. Symbolic links are followed. The
/// numbers of classes and samples are those of torchvision's DatasetFolder. The columns are those
/// of `kind`, followed by "label", int64 []. The files are listed once, by this call, and loaded on
/// request.
///
///     class_folders("spectra", {"spectra (.npy)", {"spectrum"},
///                               [](const auto& file) { return file.extension() == ".npy"; },
///                               [](const auto& file) { return std::vector{read_npy(file)}; }});
///
/// @throws DataError if `root` is missing or has no class, a class has no sample, or a folder
/// cannot be read.
/// @throws UsageError if a function is empty or names repeat. get() throws it if `load` returns
/// another number of tensors; errors of `load` pass through get() unchanged.
std::shared_ptr<const ClassFolders> class_folders(const std::filesystem::path& root, FileKind kind);

}  // namespace trireme::data
