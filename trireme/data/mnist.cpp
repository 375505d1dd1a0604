// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/mnist.h>

#include <trireme/data/files/idx.h>

#include <ATen/ops/from_blob.h>

namespace trireme::data {

std::shared_ptr<const Dataset> mnist(const std::filesystem::path& folder, Split split) {
  // The tensor keeps the bytes alive, so that they are in memory once.
  const auto set = std::make_shared<ImageSet>(read_mnist(folder, split));
  at::Tensor images = at::from_blob(
      set->pixels.data(), {set->count(), 1, set->height, set->width}, [set](void*) {},
      at::TensorOptions().dtype(at::kByte));
  at::Tensor labels =
      at::from_blob(set->labels.data(), {set->count()}, at::TensorOptions().dtype(at::kByte));
  return tensors({{"image", std::move(images)}, {"label", labels.to(at::kLong)}});
}

}  // namespace trireme::data
