// SPDX-License-Identifier: Apache-2.0
// Data sets of images in one folder per class, such as ImageNet.
#pragma once

#include <trireme/data/class_folders.h>
#include <trireme/data/images/decode.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// Makes a data set of the files `root/<class>/…/<image>` like class_folders().
///
/// Samples are the files that end in .jpg, .jpeg or .png, in lower or upper case, and any other
/// file whose first bytes are those of JPEG or PNG. The first bytes alone decide how a file is
/// decoded. If all images are JPEG or PNG with these names, classes and samples have the numbers of
/// torchvision's ImageFolder. The columns are "image", uint8 [3, H, W] or [1, H, W], decoded by
/// read_image() on each request; and "label", int64 []. Images of different sizes must be brought
/// to one size before they form a batch:
///
///     const auto photos = image_folder("photos/train");
///     DataLoader(photos).map("image", random_resized_crop(224, 224)).batch(32).prefetch(4, 2);
///
/// Throws like class_folders(); get() throws like read_image().
/// @throws ConfigError if Trireme was built without libjpeg and libpng.
std::shared_ptr<const ClassFolders> image_folder(const std::filesystem::path& root,
                                                 const ImageOptions& options = {});

}  // namespace trireme::data
