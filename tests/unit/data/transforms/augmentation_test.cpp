// SPDX-License-Identifier: Apache-2.0
// The random transforms together, as a data loader applies them.
#include "samples.h"
#include <trireme/data/data_loader.h>
#include <trireme/data/dataset.h>

#include <ATen/ops/equal.h>

namespace trireme::data {
namespace {

std::vector<Transform> augmentations() {
  return {random_rotation(30, Interpolation::kBilinear),
          random_resized_crop(24, 20),
          random_vertical_flip(),
          color_jitter(0.4, 0.4, 0.4, 0.1),
          random_grayscale(0.2),
          pad(2, 3, 1, 0, 0, PadMode::kReflect),
          random_erasing(0.5, 0.02, 0.33, 0.3, 3.3, 9),
          gaussian_blur(5),
          center_crop(16, 32)};
}

TEST(Augmentation, BelongsToSeedPassSampleAndOperationForAnyWorkers) {
  const at::Tensor images = testing::random_image({10, 3, 30, 28});
  DataLoader loader(tensors({{"image", images}}));
  loader.seed(11).batch(4);
  for (const Transform& transform : augmentations()) loader.map("image", transform);
  for (const int workers : {1, 3}) {
    const auto stream = loader.prefetch(3, workers).open(2);
    std::uint64_t sample = 0;
    while (const auto batch = stream->next()) {
      for (std::int64_t row = 0; row < batch->rows(); ++row, ++sample) {
        at::Tensor expected = images[static_cast<std::int64_t>(sample)];
        std::uint64_t operation = 0;
        for (const Transform& transform : augmentations()) {
          Random random(11, 2, sample, ++operation);
          expected = transform(expected, random);
        }
        EXPECT_TRUE(at::equal((*batch)["image"][row], expected)) << "sample " << sample;
      }
    }
    EXPECT_EQ(sample, 10U);
  }
}

}  // namespace
}  // namespace trireme::data
