// SPDX-License-Identifier: Apache-2.0
// Transforms that move elements: random_crop, random_horizontal_flip, resize, hwc_to_chw.
#include <trireme/base/error.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/transform.h>

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace trireme::data {
namespace {

using detail::Form;

// Calls `body` with an unsigned integer as large as an element: moving does not depend on what the
// bits mean.
template <typename Body>
void for_element_size(std::int64_t bytes, const Body& body) {
  switch (bytes) {
    case 1:
      return body(std::uint8_t{});
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    case 8:
      return body(std::uint64_t{});
    default:
      throw UsageError(join_message("elements of ", bytes, " bytes"),
                       "cast the column to an integer or float dtype first");
  }
}

void check_sides(std::string_view name, std::int64_t height, std::int64_t width) {
  if (height >= 1 && width >= 1) return;
  throw UsageError(join_message(name, " to ", height, " x ", width),
                   "give a height and a width of at least 1");
}

Form with_sides(const Form& input, std::int64_t height, std::int64_t width) {
  Form output = input;
  output.sizes[output.sizes.size() - 2] = height;
  output.sizes.back() = width;
  return output;
}

class RandomCrop final : public detail::Operation {
 public:
  RandomCrop(std::int64_t height, std::int64_t width, std::int64_t padding)
      : height_(height), width_(width), padding_(padding) {
    check_sides("random_crop", height, width);
    if (padding < 0)
      throw UsageError(join_message("random_crop with a padding of ", padding), "give 0 or more");
  }

  std::string_view name() const override { return "random_crop"; }

  Form result(const Form& input) const override {
    const detail::Planes planes = detail::planes_of(input);
    if (height_ > planes.height + 2 * padding_ || width_ > planes.width + 2 * padding_) {
      throw UsageError(join_message("random_crop to ", height_, " x ", width_, " of ",
                                    detail::describe(input), " with padding ", padding_),
                       "cut a smaller piece, or pad more");
    }
    return with_sides(input, height_, width_);
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const override {
    const detail::Planes planes = detail::planes_of(from);
    // Place of the piece's corner in the image; negative inside the padding.
    const std::int64_t top = random.below(planes.height + 2 * padding_ - height_ + 1) - padding_;
    const std::int64_t left = random.below(planes.width + 2 * padding_ - width_ + 1) - padding_;
    const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, width_);
    const std::int64_t end = std::clamp<std::int64_t>(planes.width - left, begin, width_);
    const std::int64_t element = from.element_bytes();
    const std::int64_t row_bytes = width_ * element;
    for (std::int64_t plane = 0; plane < planes.count; ++plane) {
      for (std::int64_t y = 0; y < height_; ++y, output += row_bytes) {
        const std::int64_t source_y = top + y;
        if (source_y < 0 || source_y >= planes.height || begin == end) {
          std::memset(output, 0, static_cast<std::size_t>(row_bytes));
          continue;
        }
        const std::byte* row =
            input + ((plane * planes.height + source_y) * planes.width + left + begin) * element;
        std::memset(output, 0, static_cast<std::size_t>(begin * element));
        std::memcpy(output + begin * element, row,
                    static_cast<std::size_t>((end - begin) * element));
        std::memset(output + end * element, 0, static_cast<std::size_t>((width_ - end) * element));
      }
    }
  }

 private:
  std::int64_t height_;
  std::int64_t width_;
  std::int64_t padding_;
};

class RandomHorizontalFlip final : public detail::Operation {
 public:
  explicit RandomHorizontalFlip(double probability) : probability_(probability) {
    if (!(probability >= 0 && probability <= 1)) {
      throw UsageError(join_message("random_horizontal_flip with probability ", probability),
                       "give one from 0 to 1");
    }
  }

  std::string_view name() const override { return "random_horizontal_flip"; }

  Form result(const Form& input) const override {
    detail::planes_of(input);
    return input;
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const override {
    if (random.uniform() >= probability_) {
      std::memcpy(output, input, from.bytes());
      return;
    }
    const std::int64_t width = from.sizes.back();
    const std::int64_t count = from.elements();
    for_element_size(from.element_bytes(), [&]<typename Element>(Element) {
      const auto* x = reinterpret_cast<const Element*>(input);
      auto* y = reinterpret_cast<Element*>(output);
      for (std::int64_t row = 0; row < count; row += width)
        std::reverse_copy(x + row, x + row + width, y + row);
    });
  }

 private:
  double probability_;
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
    for_element_size(from.element_bytes(), [&]<typename Element>(Element) {
      const auto* x = reinterpret_cast<const Element*>(input);
      auto* y = reinterpret_cast<Element*>(output);
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        for (std::int64_t i = 0; i < pixels; ++i) *y++ = x[i * channels + channel];
      }
    });
  }
};

// Between which two elements of a line of `from` each of `to` elements lies, and how near to the
// second.
struct Line {
  struct Point {
    std::int64_t first;
    std::int64_t second;
    float weight;  // of the second
  };

  Line(std::int64_t from, std::int64_t to) : points(static_cast<std::size_t>(to)) {
    const float scale = static_cast<float>(from) / static_cast<float>(to);
    for (std::int64_t i = 0; i < to; ++i) {
      const float place = std::max(scale * (static_cast<float>(i) + 0.5F) - 0.5F, 0.0F);
      const std::int64_t first = std::min(static_cast<std::int64_t>(place), from - 1);
      points[static_cast<std::size_t>(i)] = {first, std::min(first + 1, from - 1),
                                             place - static_cast<float>(first)};
    }
  }

  std::vector<Point> points;
};

class Resize final : public detail::Operation {
 public:
  Resize(std::int64_t height, std::int64_t width) : height_(height), width_(width) {
    check_sides("resize", height, width);
  }

  std::string_view name() const override { return "resize"; }

  Form result(const Form& input) const override {
    const detail::Planes planes = detail::planes_of(input);
    if (planes.height == 0 || planes.width == 0) {
      throw UsageError(join_message("resize of an image without pixels: ", detail::describe(input)),
                       "leave such samples out");
    }
    return with_sides(input, height_, width_);
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    const detail::Planes planes = detail::planes_of(from);
    const Line rows(planes.height, height_);
    const Line columns(planes.width, width_);
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, from.dtype, "resize", [&] {
      using Number = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
      std::vector<Number> blended(static_cast<std::size_t>(planes.width));
      const auto* x = reinterpret_cast<const scalar_t*>(input);
      auto* y = reinterpret_cast<scalar_t*>(output);
      for (std::int64_t plane = 0; plane < planes.count;
           ++plane, x += planes.height * planes.width) {
        for (const Line::Point& row : rows.points) {
          blend_rows(x + row.first * planes.width, x + row.second * planes.width, row.weight,
                     blended);
          for (const Line::Point& column : columns.points) {
            const Number first = blended[static_cast<std::size_t>(column.first)];
            const Number second = blended[static_cast<std::size_t>(column.second)];
            *y++ = rounded<scalar_t>(first * (1 - column.weight) + second * column.weight);
          }
        }
      }
    });
  }

 private:
  template <typename Element, typename Number>
  static void blend_rows(const Element* first, const Element* second, float weight,
                         std::vector<Number>& blended) {
    const auto count = static_cast<std::int64_t>(blended.size());
    Number* out = blended.data();
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] =
          static_cast<Number>(first[i]) * (1 - weight) + static_cast<Number>(second[i]) * weight;
    }
  }

  template <typename Element, typename Number>
  static Element rounded(Number value) {
    // The conversion truncates. std::nearbyint would be a call of the library for every element.
    if constexpr (std::is_integral_v<Element>) value += value < 0 ? Number(-0.5) : Number(0.5);
    return static_cast<Element>(value);
  }

  std::int64_t height_;
  std::int64_t width_;
};

}  // namespace

Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding) {
  return Transform(std::make_shared<RandomCrop>(height, width, padding));
}

Transform random_horizontal_flip(double probability) {
  return Transform(std::make_shared<RandomHorizontalFlip>(probability));
}

Transform resize(std::int64_t height, std::int64_t width) {
  return Transform(std::make_shared<Resize>(height, width));
}

Transform hwc_to_chw() { return Transform(std::make_shared<HwcToChw>()); }

}  // namespace trireme::data
