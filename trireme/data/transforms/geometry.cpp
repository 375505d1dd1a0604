// SPDX-License-Identifier: Apache-2.0
// Transforms that move elements: random_horizontal_flip, random_vertical_flip, random_rotation,
// hwc_to_chw.
#include <trireme/base/error.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/transform.h>
#include <trireme/data/transforms/at_random.h>
#include <trireme/data/transforms/elements.h>
#include <trireme/data/transforms/ranges.h>

#include <ATen/Dispatch.h>

#include <cmath>
#include <cstring>
#include <numbers>

namespace trireme::data {
namespace {

using detail::Form;

class RandomHorizontalFlip final : public detail::RandomApply {
 public:
  explicit RandomHorizontalFlip(double probability)
      : RandomApply("random_horizontal_flip", probability) {}

  Form result(const Form& input) const override {
    detail::planes_of(input);
    return input;
  }

 private:
  void change(const Form& from, const std::byte* input, std::byte* output) const override {
    const std::int64_t width = from.sizes.back();
    const std::int64_t count = from.elements();
    detail::for_element_size(from.element_bytes(), [&]<typename Element>(Element) {
      const auto* x = reinterpret_cast<const Element*>(input);
      auto* y = reinterpret_cast<Element*>(output);
      for (std::int64_t row = 0; row < count; row += width)
        std::reverse_copy(x + row, x + row + width, y + row);
    });
  }
};

class RandomVerticalFlip final : public detail::RandomApply {
 public:
  explicit RandomVerticalFlip(double probability)
      : RandomApply("random_vertical_flip", probability) {}

  Form result(const Form& input) const override {
    detail::planes_of(input);
    return input;
  }

 private:
  void change(const Form& from, const std::byte* input, std::byte* output) const override {
    const detail::Planes planes = detail::planes_of(from);
    const std::int64_t row_bytes = planes.width * from.element_bytes();
    for (std::int64_t plane = 0; plane < planes.count; ++plane) {
      for (std::int64_t y = planes.height - 1; y >= 0; --y, output += row_bytes) {
        std::memcpy(output, input + (plane * planes.height + y) * row_bytes,
                    static_cast<std::size_t>(row_bytes));
      }
    }
  }
};

// A point of the image; (0, 0) is the centre of the first pixel.
struct Point {
  double x;
  double y;
};

// Maps each pixel of the rotated image to its origin in the image.
class Turn {
 public:
  Turn(double degrees, const detail::Planes& planes)
      : center_{static_cast<double>(planes.width - 1) / 2,
                static_cast<double>(planes.height - 1) / 2},
        sine_(std::sin(degrees * std::numbers::pi / 180)),
        cosine_(std::cos(degrees * std::numbers::pi / 180)) {}

  Point source_of(std::int64_t x, std::int64_t y) const {
    const double right = static_cast<double>(x) - center_.x;
    const double down = static_cast<double>(y) - center_.y;
    return {center_.x + cosine_ * right - sine_ * down, center_.y + sine_ * right + cosine_ * down};
  }

 private:
  Point center_;
  double sine_;
  double cosine_;
};

class RandomRotation final : public detail::Operation {
 public:
  RandomRotation(double degrees, Interpolation interpolation)
      : degrees_(degrees), interpolation_(interpolation) {
    if (!(degrees >= 0 && std::isfinite(degrees))) {
      throw UsageError(join_message("random_rotation by up to ", degrees, " degrees"),
                       "give the largest angle, 0 or more");
    }
  }

  std::string_view name() const override { return "random_rotation"; }

  Form result(const Form& input) const override {
    detail::planes_of(input);
    if (interpolation_ == Interpolation::kBilinear) detail::check_numbers(name(), input);
    return input;
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const override {
    const double angle = detail::Range{-degrees_, degrees_}.draw(random);
    const detail::Planes planes = detail::planes_of(from);
    const Turn turn(angle, planes);
    if (interpolation_ == Interpolation::kNearest) {
      detail::for_element_size(from.element_bytes(), [&]<typename Element>(Element) {
        for_each_pixel<Element>(planes, turn, input, output, nearest<Element>);
      });
      return;
    }
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, from.dtype, "random_rotation", [&] {
      for_each_pixel<scalar_t>(planes, turn, input, output, bilinear<scalar_t>);
    });
  }

 private:
  template <typename Element, typename Sample>
  static void for_each_pixel(const detail::Planes& planes, const Turn& turn, const std::byte* input,
                             std::byte* output, const Sample& sample) {
    const auto* image = reinterpret_cast<const Element*>(input);
    auto* out = reinterpret_cast<Element*>(output);
    for (std::int64_t plane = 0; plane < planes.count; ++plane) {
      for (std::int64_t y = 0; y < planes.height; ++y) {
        for (std::int64_t x = 0; x < planes.width; ++x)
          *out++ = sample(image, planes, turn.source_of(x, y));
      }
      image += planes.height * planes.width;
    }
  }

  template <typename Element>
  static Element nearest(const Element* image, const detail::Planes& planes, const Point& point) {
    // Rounds to the nearest pixel: the conversion truncates, and the edge of a pixel is half a
    // pixel before its centre.
    const Point corner{point.x + 0.5, point.y + 0.5};
    // Written so that NaN is rejected, too.
    if (!(corner.x >= 0 && corner.y >= 0)) return {};
    const auto x = static_cast<std::int64_t>(corner.x);
    const auto y = static_cast<std::int64_t>(corner.y);
    return x < planes.width && y < planes.height ? image[y * planes.width + x] : Element{};
  }

  template <typename Element>
  static Element bilinear(const Element* image, const detail::Planes& planes, const Point& point) {
    using Number = detail::Real<Element>;
    // Written so that NaN is rejected, too.
    if (!(point.x > -1 && point.y > -1)) return {};
    // Computes floor() for values above -1; the conversion itself truncates towards 0.
    const std::int64_t left = static_cast<std::int64_t>(point.x + 1) - 1;
    const std::int64_t top = static_cast<std::int64_t>(point.y + 1) - 1;
    const auto right_weight = static_cast<Number>(point.x - static_cast<double>(left));
    const auto bottom_weight = static_cast<Number>(point.y - static_cast<double>(top));
    const auto at = [&](std::int64_t y, std::int64_t x) {
      const bool is_inside = x >= 0 && x < planes.width && y >= 0 && y < planes.height;
      return is_inside ? static_cast<Number>(image[y * planes.width + x]) : Number(0);
    };
    const Number above = at(top, left) * (1 - right_weight) + at(top, left + 1) * right_weight;
    const Number below =
        at(top + 1, left) * (1 - right_weight) + at(top + 1, left + 1) * right_weight;
    return detail::rounded<Element>(above * (1 - bottom_weight) + below * bottom_weight);
  }

  double degrees_;
  Interpolation interpolation_;
};

class HwcToChw final : public detail::Operation {
 public:
  std::string_view name() const override { return "hwc_to_chw"; }

  Form result(const Form& input) const override {
    if (input.sizes.size() != 3) {
      throw UsageError(join_message("expected an image [height, width, channels], got ",
                                    detail::describe(input)),
                       "leave hwc_to_chw out where channels come first already");
    }
    return {input.dtype, {input.sizes[2], input.sizes[0], input.sizes[1]}};
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    const std::int64_t pixels = from.sizes[0] * from.sizes[1];
    const std::int64_t channels = from.sizes[2];
    detail::for_element_size(from.element_bytes(), [&]<typename Element>(Element) {
      const auto* x = reinterpret_cast<const Element*>(input);
      auto* y = reinterpret_cast<Element*>(output);
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        for (std::int64_t i = 0; i < pixels; ++i) *y++ = x[i * channels + channel];
      }
    });
  }
};

}  // namespace

Transform random_horizontal_flip(double probability) {
  return Transform(std::make_shared<RandomHorizontalFlip>(probability));
}

Transform random_vertical_flip(double probability) {
  return Transform(std::make_shared<RandomVerticalFlip>(probability));
}

Transform random_rotation(double degrees, Interpolation interpolation) {
  return Transform(std::make_shared<RandomRotation>(degrees, interpolation));
}

Transform hwc_to_chw() { return Transform(std::make_shared<HwcToChw>()); }

}  // namespace trireme::data
