// SPDX-License-Identifier: Apache-2.0
// Images for the examples: Fashion-MNIST with its usual preparation, and made-up pictures for
// machines without a data set.
#pragma once

#include "examples/first_samples.h"
#include <trireme/data/data_loader.h>
#include <trireme/data/mnist.h>
#include <trireme/data/philox.h>
#include <trireme/data/transform.h>

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace examples {

/// Returns the first `limit` images of a split of Fashion-MNIST, all if it is 0, in random order
/// and mirrored at random where they are to be learned.
inline trireme::data::DataLoader fashion_images(const std::filesystem::path& folder,
                                                trireme::data::Split split, std::int64_t limit) {
  namespace data = trireme::data;
  data::DataLoader loader(first_samples(data::mnist(folder, split), limit));
  if (split == data::Split::kTrain) loader.shuffle(1).map("image", data::random_horizontal_flip());
  return loader.map("image", data::rescale(1 / 255.0))
      .map("image", data::normalize({0.2860}, {0.3530}));
}

/// Returns pictures of the shape of CIFAR-10's that can be learned without a data set: noise, whose
/// three colours are as bright as the three digits of the class to the base of 3.
inline std::shared_ptr<const trireme::data::Dataset> pictures(std::int64_t count,
                                                              std::uint64_t seed) {
  namespace data = trireme::data;
  return data::generator(count, {"image", "label"}, [seed](std::int64_t index) {
    data::Random random(seed, /*pass=*/0, static_cast<std::uint64_t>(index), /*operation=*/0);
    const std::int64_t label = index % 10;
    const at::Tensor image = torch::empty({3, 32, 32}, torch::kByte);
    auto* pixel = image.mutable_data_ptr<std::uint8_t>();
    for (const std::int64_t digit : {label / 9, label / 3 % 3, label % 3}) {
      const std::int64_t least = 64 * digit;
      for (int i = 0; i < 32 * 32; ++i) {
        *pixel++ = static_cast<std::uint8_t>(least + random.below(128));
      }
    }
    return std::vector<at::Tensor>{image, torch::tensor(label)};
  });
}

}  // namespace examples
