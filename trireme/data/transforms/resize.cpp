// SPDX-License-Identifier: Apache-2.0
// Transforms that scale an image: resize, random_resized_crop.
#include <trireme/data/detail/operation.h>
#include <trireme/data/transform.h>
#include <trireme/data/transforms/elements.h>
#include <trireme/data/transforms/kernels.h>
#include <trireme/data/transforms/ranges.h>

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>

namespace trireme::data {
namespace {

using detail::Form;
using detail::Range;
using detail::ResizedLine;

// A rectangle of an image.
struct Piece {
  std::int64_t top;
  std::int64_t left;
  std::int64_t height;
  std::int64_t width;
};

// The two steps of resizing a plane: blend two rows, then stretch the result. This order determines
// how float32 is rounded.
template <typename Element>
struct Lines {
  using Number = detail::Real<Element>;

  static void blend(const Element* first, const Element* second, float weight, std::size_t count,
                    Number* out) {
    for (std::size_t i = 0; i < count; ++i) {
      out[i] =
          static_cast<Number>(first[i]) * (1 - weight) + static_cast<Number>(second[i]) * weight;
    }
  }

  static void stretch(const Number* in, const ResizedLine& line, Element* out) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      out[i] = detail::rounded<Element>(in[line.first[i]] * line.weight_of_first[i] +
                                        in[line.second[i]] * line.weight_of_second[i]);
    }
  }
};

template <>
struct Lines<std::uint8_t> {
  static void blend(const std::uint8_t* first, const std::uint8_t* second, float weight,
                    std::size_t count, float* out) {
    detail::kernels().blend_bytes(first, second, weight, count, out);
  }
  static void stretch(const float* in, const ResizedLine& line, std::uint8_t* out) {
    detail::kernels().stretch_to_bytes(in, line, out);
  }
};

template <>
struct Lines<float> {
  static void blend(const float* first, const float* second, float weight, std::size_t count,
                    float* out) {
    detail::kernels().blend_floats(first, second, weight, count, out);
  }
  static void stretch(const float* in, const ResizedLine& line, float* out) {
    detail::kernels().stretch_to_floats(in, line, out);
  }
};

// Writes the piece of each plane, resized to [height, width].
void resize_piece(const Form& from, const Piece& piece, std::int64_t height, std::int64_t width,
                  const std::byte* input, std::byte* output) {
  const detail::Planes planes = detail::planes_of(from);
  const ResizedLine rows(piece.height, height);
  const ResizedLine columns(piece.width, width);
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, from.dtype, "resize", [&] {
    using Number = detail::Real<scalar_t>;
    const auto piece_width = static_cast<std::size_t>(piece.width);
    std::vector<Number> blended(piece_width + detail::kLinePadding);
    const auto* x =
        reinterpret_cast<const scalar_t*>(input) + piece.top * planes.width + piece.left;
    auto* y = reinterpret_cast<scalar_t*>(output);
    for (std::int64_t plane = 0; plane < planes.count; ++plane, x += planes.height * planes.width) {
      for (std::size_t row = 0; row < rows.size(); ++row, y += width) {
        Lines<scalar_t>::blend(x + rows.first[row] * planes.width,
                               x + rows.second[row] * planes.width, rows.weight_of_second[row],
                               piece_width, blended.data());
        Lines<scalar_t>::stretch(blended.data(), columns, y);
      }
    }
  });
}

class Resize final : public detail::Operation {
 public:
  Resize(std::int64_t height, std::int64_t width) : height_(height), width_(width) {
    detail::check_sides("resize", height, width);
  }

  std::string_view name() const override { return "resize"; }

  Form result(const Form& input) const override {
    detail::check_pixels("resize", input);
    detail::check_numbers("resize", input);
    return detail::with_sides(input, height_, width_);
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    const detail::Planes planes = detail::planes_of(from);
    resize_piece(from, {0, 0, planes.height, planes.width}, height_, width_, input, output);
  }

 private:
  std::int64_t height_;
  std::int64_t width_;
};

class RandomResizedCrop final : public detail::Operation {
 public:
  RandomResizedCrop(std::int64_t height, std::int64_t width, Range scale, Range ratio)
      : height_(height), width_(width), scale_(scale), ratio_(ratio) {
    detail::check_sides("random_resized_crop", height, width);
    detail::check_parts("random_resized_crop", scale);
    detail::check_positive("random_resized_crop", "ratio", ratio);
  }

  std::string_view name() const override { return "random_resized_crop"; }

  Form result(const Form& input) const override {
    detail::check_pixels("random_resized_crop", input);
    detail::check_numbers("random_resized_crop", input);
    return detail::with_sides(input, height_, width_);
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const override {
    const Piece piece = draw_piece(detail::planes_of(from), random);
    resize_piece(from, piece, height_, width_, input, output);
  }

 private:
  Piece draw_piece(const detail::Planes& image, Random& random) const {
    const auto area = static_cast<double>(image.height * image.width);
    for (int attempt = 0; attempt < 10; ++attempt) {
      const auto [width, height] = detail::draw_sides(random, area, scale_, ratio_);
      if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
      const std::int64_t top = random.below(image.height - height + 1);
      const std::int64_t left = random.below(image.width - width + 1);
      return {top, left, height, width};
    }
    return central_piece(image);
  }

  // Returns the largest central piece whose ratio is allowed, of at least one pixel.
  Piece central_piece(const detail::Planes& image) const {
    Piece piece{0, 0, image.height, image.width};
    const auto height = static_cast<double>(image.height);
    const auto width = static_cast<double>(image.width);
    const auto whole = [](double side) {
      return static_cast<std::int64_t>(std::max(1.0, std::nearbyint(side)));
    };
    if (width / height < ratio_.min) {
      piece.height = whole(width / ratio_.min);
    } else if (width / height > ratio_.max) {
      piece.width = whole(height * ratio_.max);
    }
    piece.top = (image.height - piece.height) / 2;
    piece.left = (image.width - piece.width) / 2;
    return piece;
  }

  std::int64_t height_;
  std::int64_t width_;
  Range scale_;
  Range ratio_;
};

}  // namespace

Transform resize(std::int64_t height, std::int64_t width) {
  return Transform(std::make_shared<Resize>(height, width));
}

Transform random_resized_crop(std::int64_t height, std::int64_t width, double scale_min,
                              double scale_max, double ratio_min, double ratio_max) {
  return Transform(std::make_shared<RandomResizedCrop>(height, width, Range{scale_min, scale_max},
                                                       Range{ratio_min, ratio_max}));
}

}  // namespace trireme::data
