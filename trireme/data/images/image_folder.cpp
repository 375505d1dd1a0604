// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/images/image_folder.h>

#include <trireme/base/text.h>
#include <trireme/data/images/signature.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {
namespace {

// Checks the name first: a data set may have a million files, and opening each one takes minutes.
bool is_image(const std::filesystem::path& file) {
  std::string extension = file.extension().string();
  std::ranges::transform(extension, extension.begin(), ascii_lower);
  if (extension == ".jpg" || extension == ".jpeg" || extension == ".png") return true;
  if (!std::filesystem::is_regular_file(file)) return false;
  std::array<char, detail::kSignatureBytes> begin{};
  std::ifstream(file, std::ios::binary).read(begin.data(), begin.size());
  return detail::image_kind(std::as_bytes(std::span(begin))) != detail::ImageKind::kUnknown;
}

}  // namespace

std::shared_ptr<const ClassFolders> image_folder(const std::filesystem::path& root,
                                                 const ImageOptions& options) {
  detail::require_image_decoders();
  return class_folders(root, {.description = "images (JPEG, PNG)",
                              .columns = {"image"},
                              .is_sample = is_image,
                              .load = [options](const std::filesystem::path& file) {
                                return std::vector<at::Tensor>{read_image(file, options)};
                              }});
}

}  // namespace trireme::data
