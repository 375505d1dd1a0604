// SPDX-License-Identifier: Apache-2.0
// Images sorted into a folder for each class, such as ImageNet's.
#pragma once

#include <trireme/data/class_folders.h>
#include <trireme/data/images/decode.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// Lists `root/<class>/…/<image>` as class_folders() does. Samples are the files that end with
/// .jpg, .jpeg or .png in small or capital letters, and any other file whose first bytes are those
/// of a JPEG or PNG file; what a file is when it is read, its first bytes say alone. Where all
/// images are of these two kinds and named so, classes and samples have the numbers that
/// torchvision's ImageFolder gives them. Columns: "image" uint8 [3, H, W] or [1, H, W], decoded by
/// read_image() each time that it is asked for; and "label" int64 [].
///
/// Images of different sizes have to be brought to one before they make a batch:
///
///     const auto photos = image_folder("photos/train");
///     DataLoader(photos).map("image", random_resized_crop(224, 224)).batch(32).prefetch(4, 2);
///
/// Throws as class_folders() and, in get(), read_image() do; ConfigError where Trireme was built
/// without libjpeg and libpng.
std::shared_ptr<const ClassFolders> image_folder(const std::filesystem::path& root,
                                                 const ImageOptions& options = {});

}  // namespace trireme::data
