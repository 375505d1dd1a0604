// SPDX-License-Identifier: Apache-2.0
// Applies transforms to images with random numbers that a test can draw again.
#pragma once

#include <trireme/base/error.h>
#include <trireme/data/philox.h>
#include <trireme/data/transform.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

namespace trireme::data::testing {

/// Returns the random numbers of a sample.
inline Random numbers(std::uint64_t sample = 0) { return {7, 0, sample, 1}; }

/// Applies a transform with the random numbers of a sample.
inline at::Tensor apply(const Transform& transform, const at::Tensor& image,
                        std::uint64_t sample = 0) {
  Random random = numbers(sample);
  return transform(image, random);
}

/// Returns an image of random bytes.
inline at::Tensor random_image(at::IntArrayRef sizes, at::ScalarType dtype = at::kByte) {
  return at::randint(256, sizes, dtype);
}

/// Returns the message of the UsageError that `transform` throws for `image`.
inline std::string refusal(const Transform& transform, const at::Tensor& image) {
  return test::message_of<UsageError>([&] { apply(transform, image); });
}

/// Draws a number from `low` to `high` like a transform.
inline double draw(Random& random, double low, double high) {
  return low + (high - low) * static_cast<double>(random.uniform());
}

/// A rectangle of an image.
struct Rectangle {
  std::int64_t top;
  std::int64_t left;
  std::int64_t height;
  std::int64_t width;

  at::Tensor of(const at::Tensor& image) const {
    return image.slice(-2, top, top + height).slice(-1, left, left + width);
  }
};

}  // namespace trireme::data::testing
