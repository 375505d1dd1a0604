// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/class_folders.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

// A file within the folder of its class: the path of the folders in between, and its name. As in
// torchvision, pairs are compared by folder first: the folder "a-b" sorts before the files in
// "a/b".
using Place = std::pair<std::string, std::string>;

// Adds the samples in `folder` and the folders in it. `below` is the path from the folder of the
// class.
void collect(const fs::path& folder, const std::string& below,
             const std::function<bool(const fs::path&)>& is_sample, std::vector<Place>& places) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (entry.is_directory()) {
      collect(entry.path(), below.empty() ? name : below + '/' + name, is_sample, places);
    } else if (is_sample(entry.path())) {
      places.emplace_back(below, std::move(name));
    }
  }
}

std::vector<std::string> folders_in(const fs::path& root) {
  if (!fs::is_directory(root)) {
    throw DataError(join_message("no folder ", root.string()),
                    "check the path, and the folder that the program was started in");
  }
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  if (names.empty()) {
    throw DataError(join_message("no folder in ", root.string(), ", expected one for each class"),
                    "give the folder above those of the classes");
  }
  std::ranges::sort(names);
  return names;
}

class Folders final : public ClassFolders {
 public:
  Folders(fs::path root, FileKind kind)
      : root_(std::move(root)), kind_(std::move(kind)), columns_(kind_.columns) {
    if (!kind_.is_sample || !kind_.load) {
      throw UsageError(join_message("a data set of ", kind_.description, " without a function"),
                       "give is_sample and load");
    }
    columns_.emplace_back("label");
    detail::check_names(columns_);
    try {
      classes_ = folders_in(root_);
      for (std::size_t label = 0; label < classes_.size(); ++label) list(label);
    } catch (const fs::filesystem_error& error) {
      throw DataError(
          join_message(error.path1().string(), " cannot be listed: ", error.code().message()),
          "check the permissions of the folder, and links that go round in circles");
    }
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  const std::vector<std::string>& columns() const override { return columns_; }
  const std::vector<std::string>& classes() const override { return classes_; }

  fs::path file(std::int64_t index) const override {
    detail::check_index(index, size());
    const File& file = files_[static_cast<std::size_t>(index)];
    return root_ / classes_[file.label] / file.name;
  }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    const fs::path path = file(index);
    std::vector<at::Tensor> sample = kind_.load(path);
    if (sample.size() != kind_.columns.size()) {
      throw UsageError(join_message(path.string(), ": the function that loads returned ",
                                    sample.size(), " tensors, expected ", kind_.columns.size(),
                                    ": ", detail::quoted(kind_.columns)),
                       "return one tensor for each column");
    }
    const at::Tensor label = at::empty({}, at::kLong);
    *label.mutable_data_ptr<std::int64_t>() =
        static_cast<std::int64_t>(files_[static_cast<std::size_t>(index)].label);
    sample.push_back(label);
    return sample;
  }

 private:
  struct File {
    std::string name;  // Relative to the folder of the class.
    std::size_t label;
  };

  // Adds the files of one class. A class without samples is an error because its label would never
  // occur.
  void list(std::size_t label) {
    std::vector<Place> places;
    collect(root_ / classes_[label], "", kind_.is_sample, places);
    if (places.empty()) {
      throw DataError(
          join_message((root_ / classes_[label]).string(), " has no ", kind_.description),
          "take away the folder, or put the files of this class into it");
    }
    std::ranges::sort(places);
    for (auto& [below, name] : places)
      files_.push_back({below.empty() ? std::move(name) : below + '/' + name, label});
  }

  fs::path root_;
  FileKind kind_;
  std::vector<std::string> columns_;
  std::vector<std::string> classes_;
  std::vector<File> files_;
};

}  // namespace

std::shared_ptr<const ClassFolders> class_folders(const fs::path& root, FileKind kind) {
  return std::make_shared<Folders>(root, std::move(kind));
}

}  // namespace trireme::data
