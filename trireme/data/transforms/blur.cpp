// SPDX-License-Identifier: Apache-2.0
// gaussian_blur. The kernel is the product of one for rows and one for columns. So each row is
// first averaged with the rows above and below, and then along itself.
#include <trireme/base/error.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/transform.h>
#include <trireme/data/transforms/elements.h>
#include <trireme/data/transforms/ranges.h>

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>

namespace trireme::data {
namespace {

using detail::Form;
using detail::Range;

// Returns the index for a position in a line of `size` pixels that is mirrored at its ends.
std::int64_t mirrored(std::int64_t place, std::int64_t size) {
  if (place < 0) return -place;
  return place < size ? place : 2 * (size - 1) - place;
}

// Returns the Gaussian weights of `count` neighbours, which sum to 1.
template <typename Number>
std::vector<Number> bell(std::int64_t count, double sigma) {
  std::vector<double> heights;
  double sum = 0;
  const std::int64_t half = count / 2;
  for (std::int64_t place = -half; place <= half; ++place) {
    const double deviations = static_cast<double>(place) / sigma;
    heights.push_back(std::exp(-0.5 * deviations * deviations));
    sum += heights.back();
  }
  std::vector<Number> weights;
  for (const double height : heights) weights.push_back(static_cast<Number>(height / sum));
  return weights;
}

class GaussianBlur final : public detail::Operation {
 public:
  GaussianBlur(std::int64_t kernel_size, Range sigma) : kernel_size_(kernel_size), sigma_(sigma) {
    if (kernel_size < 1 || kernel_size % 2 == 0) {
      throw UsageError(join_message("gaussian_blur with a kernel of ", kernel_size),
                       "give an odd number of pixels, so that one is in the middle");
    }
    detail::check_positive("gaussian_blur", "sigma", sigma);
  }

  std::string_view name() const override { return "gaussian_blur"; }

  Form result(const Form& input) const override {
    const detail::Planes planes = detail::planes_of(input);
    detail::check_numbers("gaussian_blur", input);
    if (kernel_size_ / 2 >= std::min(planes.height, planes.width)) {
      throw UsageError(join_message("gaussian_blur with a kernel of ", kernel_size_, " of ",
                                    detail::describe(input)),
                       "half of the kernel is smaller than either side of the image");
    }
    return input;
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const override {
    const double sigma = sigma_.draw(random);
    const detail::Planes planes = detail::planes_of(from);
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, from.dtype, "gaussian_blur", [&] {
      using Number = detail::Real<scalar_t>;
      const std::vector<Number> weights = bell<Number>(kernel_size_, sigma);
      const std::int64_t half = kernel_size_ / 2;
      // One averaged row, continued by `half` mirrored pixels at either end.
      std::vector<Number> row(static_cast<std::size_t>(planes.width + 2 * half));
      const auto* x = reinterpret_cast<const scalar_t*>(input);
      auto* y = reinterpret_cast<scalar_t*>(output);
      for (std::int64_t plane = 0; plane < planes.count; ++plane) {
        for (std::int64_t line = 0; line < planes.height; ++line, y += planes.width) {
          average_column(x, planes, line, weights, row.data() + half);
          mirror_ends(row, half);
          average_row(row, weights, planes.width, y);
        }
        x += planes.height * planes.width;
      }
    });
  }

 private:
  template <typename Element, typename Number>
  static void average_column(const Element* image, const detail::Planes& planes, std::int64_t line,
                             const std::vector<Number>& weights, Number* out) {
    std::fill_n(out, planes.width, Number(0));
    std::int64_t neighbor = line - static_cast<std::int64_t>(weights.size()) / 2;
    for (const Number weight : weights) {
      const Element* const row = image + mirrored(neighbor++, planes.height) * planes.width;
      for (std::int64_t i = 0; i < planes.width; ++i)
        out[i] += weight * static_cast<Number>(row[i]);
    }
  }

  template <typename Number>
  static void mirror_ends(std::vector<Number>& row, std::int64_t half) {
    const std::int64_t width = static_cast<std::int64_t>(row.size()) - 2 * half;
    Number* const middle = row.data() + half;
    for (std::int64_t i = 1; i <= half; ++i) {
      middle[-i] = middle[mirrored(-i, width)];
      middle[width - 1 + i] = middle[mirrored(width - 1 + i, width)];
    }
  }

  template <typename Element, typename Number>
  static void average_row(const std::vector<Number>& row, const std::vector<Number>& weights,
                          std::int64_t width, Element* out) {
    for (std::int64_t i = 0; i < width; ++i) {
      Number sum = 0;
      const Number* value = row.data() + i;
      for (const Number weight : weights) sum += weight * *value++;
      out[i] = detail::rounded<Element>(sum);
    }
  }

  std::int64_t kernel_size_;
  Range sigma_;
};

}  // namespace

Transform gaussian_blur(std::int64_t kernel_size, double sigma_min, double sigma_max) {
  return Transform(std::make_shared<GaussianBlur>(kernel_size, Range{sigma_min, sigma_max}));
}

}  // namespace trireme::data
