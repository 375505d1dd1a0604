// SPDX-License-Identifier: Apache-2.0
// Transforms that cut, pad or overwrite rectangles of an image: random_crop, center_crop, pad,
// random_erasing.
#include <trireme/base/error.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/transform.h>
#include <trireme/data/transforms/elements.h>
#include <trireme/data/transforms/ranges.h>

#include <algorithm>
#include <cstring>

namespace trireme::data {
namespace {

using detail::Form;
using detail::Range;

// Writes the piece [height, width] with its corner at (top, left) of the image; pixels outside the
// image are 0.
void cut(const Form& from, std::int64_t top, std::int64_t left, std::int64_t height,
         std::int64_t width, const std::byte* input, std::byte* output) {
  const detail::Planes planes = detail::planes_of(from);
  // The columns [begin, end) of the piece lie inside the image; the others are 0.
  const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, width);
  const std::int64_t end = std::clamp<std::int64_t>(planes.width - left, begin, width);
  const std::int64_t element = from.element_bytes();
  const std::int64_t row_bytes = width * element;
  for (std::int64_t plane = 0; plane < planes.count; ++plane) {
    for (std::int64_t y = 0; y < height; ++y, output += row_bytes) {
      const std::int64_t source_y = top + y;
      if (source_y < 0 || source_y >= planes.height || begin == end) {
        std::memset(output, 0, static_cast<std::size_t>(row_bytes));
        continue;
      }
      const std::byte* row =
          input + ((plane * planes.height + source_y) * planes.width + left + begin) * element;
      std::memset(output, 0, static_cast<std::size_t>(begin * element));
      std::memcpy(output + begin * element, row, static_cast<std::size_t>((end - begin) * element));
      std::memset(output + end * element, 0, static_cast<std::size_t>((width - end) * element));
    }
  }
}

class RandomCrop final : public detail::Operation {
 public:
  RandomCrop(std::int64_t height, std::int64_t width, std::int64_t padding)
      : height_(height), width_(width), padding_(padding) {
    detail::check_sides("random_crop", height, width);
    if (padding < 0 || padding > detail::kMostPadding) {
      throw UsageError(join_message("random_crop with a padding of ", padding),
                       "give 0 to 2^31 pixels");
    }
  }

  std::string_view name() const override { return "random_crop"; }

  Form result(const Form& input) const override {
    detail::check_pixels("random_crop", input);
    const detail::Planes planes = detail::planes_of(input);
    if (height_ > planes.height + 2 * padding_ || width_ > planes.width + 2 * padding_) {
      throw UsageError(join_message("random_crop to ", height_, " x ", width_, " of ",
                                    detail::describe(input), " with padding ", padding_),
                       "cut a smaller piece, or pad more");
    }
    return detail::with_sides(input, height_, width_);
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const override {
    const detail::Planes planes = detail::planes_of(from);
    // The corner of the piece in the image; negative within the padding.
    const std::int64_t top = random.below(planes.height + 2 * padding_ - height_ + 1) - padding_;
    const std::int64_t left = random.below(planes.width + 2 * padding_ - width_ + 1) - padding_;
    cut(from, top, left, height_, width_, input, output);
  }

 private:
  std::int64_t height_;
  std::int64_t width_;
  std::int64_t padding_;
};

class CenterCrop final : public detail::Operation {
 public:
  CenterCrop(std::int64_t height, std::int64_t width) : height_(height), width_(width) {
    detail::check_sides("center_crop", height, width);
  }

  std::string_view name() const override { return "center_crop"; }

  Form result(const Form& input) const override {
    detail::check_pixels("center_crop", input);
    return detail::with_sides(input, height_, width_);
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    const detail::Planes planes = detail::planes_of(from);
    cut(from, begin_of(planes.height, height_), begin_of(planes.width, width_), height_, width_,
        input, output);
  }

 private:
  // torchvision rounds half of the surplus to even, and half of the missing pixels down.
  static std::int64_t begin_of(std::int64_t size, std::int64_t piece) {
    if (piece > size) return -((piece - size) / 2);
    const std::int64_t half = (size - piece) / 2;
    return (size - piece) % 2 == 1 ? half + half % 2 : half;
  }

  std::int64_t height_;
  std::int64_t width_;
};

class Pad final : public detail::Operation {
 public:
  Pad(std::int64_t left, std::int64_t top, std::int64_t right, std::int64_t bottom, double value,
      PadMode mode)
      : left_(left), top_(top), right_(right), bottom_(bottom), value_(value), mode_(mode) {
    const auto [least, most] = std::minmax({left, top, right, bottom});
    if (least < 0 || most > detail::kMostPadding) {
      throw UsageError(
          join_message("pad by ", left, ", ", top, ", ", right, " and ", bottom, " pixels"),
          "give 0 to 2^31 for each side; crops make an image smaller");
    }
  }

  std::string_view name() const override { return "pad"; }

  Form result(const Form& input) const override {
    detail::check_pixels("pad", input);
    const detail::Planes planes = detail::planes_of(input);
    if (mode_ == PadMode::kConstant) detail::element_of("pad", value_, input);
    if (mode_ == PadMode::kReflect &&
        (std::max(left_, right_) >= planes.width || std::max(top_, bottom_) >= planes.height)) {
      throw UsageError(join_message("pad by ", left_, ", ", top_, ", ", right_, " and ", bottom_,
                                    " pixels that mirror ", detail::describe(input)),
                       "a reflection is smaller than the image; pad less, or by another PadMode");
    }
    return detail::with_sides(input, planes.height + top_ + bottom_, planes.width + left_ + right_);
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    const detail::Planes planes = detail::planes_of(from);
    const std::int64_t width = planes.width;
    std::array<std::byte, 8> value{};
    if (mode_ == PadMode::kConstant) value = detail::element_of("pad", value_, from);
    detail::for_element_size(from.element_bytes(), [&]<typename Element>(Element fill) {
      std::memcpy(&fill, value.data(), sizeof(fill));
      const auto* x = reinterpret_cast<const Element*>(input);
      auto* out = reinterpret_cast<Element*>(output);
      for (std::int64_t plane = 0; plane < planes.count; ++plane, x += planes.height * width) {
        for (std::int64_t y = -top_; y < planes.height + bottom_; ++y) {
          const std::int64_t source_y = source_of(y, planes.height);
          if (source_y < 0) {
            out = std::fill_n(out, left_ + width + right_, fill);
            continue;
          }
          const Element* row = x + source_y * width;
          // Only the columns beside the image need the mapping; the image itself is copied at once.
          const auto outside = [&](std::int64_t column) {
            const std::int64_t source = source_of(column, width);
            return source < 0 ? fill : row[source];
          };
          for (std::int64_t column = -left_; column < 0; ++column) *out++ = outside(column);
          out = std::copy_n(row, width, out);
          for (std::int64_t column = width; column < width + right_; ++column)
            *out++ = outside(column);
        }
      }
    });
  }

 private:
  // Returns the index of the pixel that is shown at `place` in a line of `size` pixels; -1 for the
  // constant.
  std::int64_t source_of(std::int64_t place, std::int64_t size) const {
    if (place >= 0 && place < size) return place;
    if (mode_ == PadMode::kConstant) return -1;
    if (mode_ == PadMode::kEdge) return place < 0 ? 0 : size - 1;
    return place < 0 ? -place : 2 * (size - 1) - place;
  }

  std::int64_t left_;
  std::int64_t top_;
  std::int64_t right_;
  std::int64_t bottom_;
  double value_;
  PadMode mode_;
};

class RandomErasing final : public detail::Operation {
 public:
  RandomErasing(double probability, Range scale, Range ratio, double value)
      : probability_(probability), scale_(scale), ratio_(ratio), value_(value) {
    detail::check_probability("random_erasing", probability);
    detail::check_parts("random_erasing", scale);
    detail::check_positive("random_erasing", "ratio", ratio);
  }

  std::string_view name() const override { return "random_erasing"; }

  Form result(const Form& input) const override {
    detail::planes_of(input);
    detail::element_of("random_erasing", value_, input);
    return input;
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const override {
    detail::copy_sample(from, input, output);
    if (random.uniform() >= probability_) return;
    const detail::Planes planes = detail::planes_of(from);
    const auto area = static_cast<double>(planes.height * planes.width);
    for (int attempt = 0; attempt < 10; ++attempt) {
      const auto [height, width] = detail::draw_sides(random, area, scale_, ratio_);
      if (height >= planes.height || width >= planes.width) continue;
      const std::int64_t top = random.below(planes.height - height + 1);
      const std::int64_t left = random.below(planes.width - width + 1);
      erase(from, top, left, height, width, output);
      return;
    }
  }

 private:
  void erase(const Form& form, std::int64_t top, std::int64_t left, std::int64_t height,
             std::int64_t width, std::byte* sample) const {
    const detail::Planes planes = detail::planes_of(form);
    const std::array<std::byte, 8> value = detail::element_of("random_erasing", value_, form);
    detail::for_element_size(form.element_bytes(), [&]<typename Element>(Element fill) {
      std::memcpy(&fill, value.data(), sizeof(fill));
      auto* x = reinterpret_cast<Element*>(sample);
      for (std::int64_t plane = 0; plane < planes.count; ++plane) {
        for (std::int64_t y = top; y < top + height; ++y)
          std::fill_n(x + (plane * planes.height + y) * planes.width + left, width, fill);
      }
    });
  }

  double probability_;
  Range scale_;
  Range ratio_;
  double value_;
};

}  // namespace

Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding) {
  return Transform(std::make_shared<RandomCrop>(height, width, padding));
}

Transform center_crop(std::int64_t height, std::int64_t width) {
  return Transform(std::make_shared<CenterCrop>(height, width));
}

Transform pad(std::int64_t left, std::int64_t top, std::int64_t right, std::int64_t bottom,
              double value, PadMode mode) {
  return Transform(std::make_shared<Pad>(left, top, right, bottom, value, mode));
}

Transform random_erasing(double probability, double scale_min, double scale_max, double ratio_min,
                         double ratio_max, double value) {
  return Transform(std::make_shared<RandomErasing>(probability, Range{scale_min, scale_max},
                                                   Range{ratio_min, ratio_max}, value));
}

}  // namespace trireme::data
