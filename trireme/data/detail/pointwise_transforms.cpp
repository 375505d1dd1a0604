// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/pointwise_transforms.h>

#include <trireme/data/transforms/elements.h>

#include <algorithm>
#include <array>

namespace trireme::data::detail {
namespace {

// Elements of one block. Two blocks of float64 take 16 KiB and stay in the first-level cache.
constexpr std::int64_t kBlock = 1024;
using BlockBytes = std::array<std::byte, kBlock * sizeof(double)>;

std::int64_t bytes_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace

void Pointwise::run(const Form& from, const std::byte* input, std::byte* output,
                    Random& /*random*/) const {
  const PointwiseStep step{this, from.dtype};
  run_pointwise({&step, 1}, from, result(from).dtype, input, output);
}

void run_pointwise(std::span<const PointwiseStep> steps, const Form& from, at::ScalarType to,
                   const std::byte* input, std::byte* output) {
  // Images are processed plane by plane, because the channel selects mean and std. A sample with
  // fewer than two dimensions is a single plane.
  const bool is_image = from.sizes.size() >= 2;
  const Planes planes = is_image ? planes_of(from) : Planes{1, 1, from.elements()};
  const std::int64_t channels = is_image ? channels_of(from) : 1;
  const std::int64_t input_bytes = from.element_bytes();
  const std::int64_t output_bytes = bytes_of(to);
  const std::int64_t plane_elements = planes.height * planes.width;
  std::array<BlockBytes, 2> between;
  for (std::int64_t plane = 0; plane < planes.count; ++plane) {
    const std::int64_t channel = plane % channels;
    for (std::int64_t begin = 0; begin < plane_elements; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, plane_elements - begin);
      const std::byte* source = input;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        std::byte* const target = i + 1 == steps.size() ? output : between[i % 2].data();
        steps[i].operation->run_block(steps[i].from, channel, source, target, count);
        source = target;
      }
      input += count * input_bytes;
      output += count * output_bytes;
    }
  }
}

}  // namespace trireme::data::detail
