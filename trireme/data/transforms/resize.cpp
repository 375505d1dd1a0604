// SPDX-License-Identifier: Apache-2.0
// Transforms that scale an image: resize, random_resized_crop.
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

// A rectangle of an image.
struct Piece {
  std::int64_t top;
  std::int64_t left;
  std::int64_t height;
  std::int64_t width;
};

template <typename Element, typename Number>
void blend_rows(const Element* first, const Element* second, float weight,
                std::vector<Number>& blended) {
  const auto count = static_cast<std::int64_t>(blended.size());
  Number* out = blended.data();
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<Number>(first[i]) * (1 - weight) + static_cast<Number>(second[i]) * weight;
  }
}

// Writes the piece of each plane, resized to [height, width].
void resize_piece(const Form& from, const Piece& piece, std::int64_t height, std::int64_t width,
                  const std::byte* input, std::byte* output) {
  const detail::Planes planes = detail::planes_of(from);
  const Line rows(piece.height, height);
  const Line columns(piece.width, width);
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, from.dtype, "resize", [&] {
    using Number = detail::Real<scalar_t>;
    std::vector<Number> blended(static_cast<std::size_t>(piece.width));
    const auto* x =
        reinterpret_cast<const scalar_t*>(input) + piece.top * planes.width + piece.left;
    auto* y = reinterpret_cast<scalar_t*>(output);
    for (std::int64_t plane = 0; plane < planes.count; ++plane, x += planes.height * planes.width) {
      for (const Line::Point& row : rows.points) {
        blend_rows(x + row.first * planes.width, x + row.second * planes.width, row.weight,
                   blended);
        for (const Line::Point& column : columns.points) {
          const Number first = blended[static_cast<std::size_t>(column.first)];
          const Number second = blended[static_cast<std::size_t>(column.second)];
          *y++ = detail::rounded<scalar_t>(first * (1 - column.weight) + second * column.weight);
        }
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

  // The largest piece in the middle whose ratio is allowed, of at least one pixel.
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
