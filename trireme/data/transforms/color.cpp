// SPDX-License-Identifier: Apache-2.0
// Transforms of colours: color_jitter, to_grayscale, random_grayscale. The formulas, and the order
// of their operations in float32, are those of torchvision for tensors.
#include <trireme/base/error.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/transform.h>
#include <trireme/data/transforms/at_random.h>
#include <trireme/data/transforms/elements.h>
#include <trireme/data/transforms/ranges.h>

#include <ATen/Dispatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

namespace trireme::data {
namespace {

using detail::Form;
using detail::Range;
using detail::Real;

// One image. The channels of [3, H, W] are `pixels` elements apart.
template <typename Element>
struct Image {
  Element* data;
  std::int64_t channels;
  std::int64_t pixels;

  std::int64_t elements() const { return channels * pixels; }
};

// Returns the grey of a pixel. Integers are truncated, as in torchvision.
template <typename Element>
Element gray_of(const Element* pixel, std::int64_t pixels) {
  using Number = Real<Element>;
  return static_cast<Element>(Number(0.2989) * static_cast<Number>(pixel[0]) +
                              Number(0.587) * static_cast<Number>(pixel[pixels]) +
                              Number(0.114) * static_cast<Number>(pixel[2 * pixels]));
}

void check_colors(std::string_view name, const Form& form) {
  if (form.sizes.size() >= 3 && detail::channels_of(form) == 3) return;
  throw UsageError(
      join_message(name, " of an image that is not red, green and blue: ", detail::describe(form)),
      "give images [3, height, width]; hwc_to_chw moves the channels to the front");
}

std::int64_t pixels_of(const Form& form) {
  const detail::Planes planes = detail::planes_of(form);
  return planes.height * planes.width;
}

template <typename Element>
constexpr Real<Element> kBrightest = std::is_integral_v<Element> ? 255 : 1;

// Computes factor * value + (1 - factor) * other, clamped to black and white.
template <typename Element>
struct Blend {
  using Number = Real<Element>;

  explicit Blend(double factor)
      : of_value(static_cast<Number>(factor)), of_other(static_cast<Number>(1 - factor)) {}

  Element operator()(Element value, Number other) const {
    const Number sum = of_value * static_cast<Number>(value) + of_other * other;
    return static_cast<Element>(std::clamp(sum, Number(0), kBrightest<Element>));
  }

  Number of_value;
  Number of_other;
};

template <typename Element>
void adjust_brightness(const Image<Element>& image, double factor) {
  const Blend<Element> blend(factor);
  for (std::int64_t i = 0; i < image.elements(); ++i) image.data[i] = blend(image.data[i], 0);
}

template <typename Element>
void adjust_contrast(const Image<Element>& image, double factor) {
  // The mean of the grey image; other numbers of channels have no grey and use all values.
  const bool is_gray = image.channels != 3;
  const std::int64_t count = is_gray ? image.elements() : image.pixels;
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Element* const pixel = image.data + i;
    sum += static_cast<double>(is_gray ? *pixel : gray_of(pixel, image.pixels));
  }
  const auto mean = static_cast<Real<Element>>(sum / static_cast<double>(count));
  const Blend<Element> blend(factor);
  for (std::int64_t i = 0; i < image.elements(); ++i) image.data[i] = blend(image.data[i], mean);
}

template <typename Element>
void adjust_saturation(const Image<Element>& image, double factor) {
  const Blend<Element> blend(factor);
  for (std::int64_t i = 0; i < image.pixels; ++i) {
    Element* const pixel = image.data + i;
    const auto gray = static_cast<Real<Element>>(gray_of(pixel, image.pixels));
    for (std::int64_t channel = 0; channel < 3; ++channel) {
      Element& value = pixel[channel * image.pixels];
      value = blend(value, gray);
    }
  }
}

template <typename Number>
using Color = std::array<Number, 3>;

// Converts red, green and blue to hue, saturation and value, all in [0, 1].
template <typename Number>
Color<Number> to_hsv(const Color<Number>& rgb) {
  const auto& [red, green, blue] = rgb;
  const Number value = std::max({red, green, blue});
  const Number chroma = value - std::min({red, green, blue});
  if (chroma == 0) return {0, 0, value};
  const Number from_red = (value - red) / chroma;
  const Number from_green = (value - green) / chroma;
  const Number from_blue = (value - blue) / chroma;
  Number sixths = 4 + from_green - from_red;
  if (value == red) {
    sixths = from_blue - from_green;
  } else if (value == green) {
    sixths = 2 + from_red - from_blue;
  }
  // Adds a turn so that negative hues become positive.
  const Number turned = sixths / 6 + 1;
  return {turned < 1 ? turned : turned - 1, chroma / value, value};
}

template <typename Number>
Color<Number> to_rgb(const Color<Number>& hsv) {
  const auto& [hue, saturation, value] = hsv;
  const Number sixths = hue * 6;
  // A NaN has no sector and must not be converted to int.
  const int sector = sixths >= 0 && sixths <= 6 ? static_cast<int>(sixths) : 0;
  const Number part = sixths - static_cast<Number>(sector);
  const auto shade = [&](Number fraction) {
    return std::clamp(value * (1 - saturation * fraction), Number(0), Number(1));
  };
  switch (sector) {
    case 1:
      return {shade(part), value, shade(1)};
    case 2:
      return {shade(1), value, shade(1 - part)};
    case 3:
      return {shade(1), shade(part), value};
    case 4:
      return {shade(1 - part), shade(1), value};
    case 5:
      return {value, shade(1), shade(part)};
    default:  // 0, or 6 where the hue was rounded to 1
      return {value, shade(1 - part), shade(1)};
  }
}

template <typename Element>
void adjust_hue(const Image<Element>& image, double shift) {
  using Number = Real<Element>;
  for (std::int64_t i = 0; i < image.pixels; ++i) {
    Element* const pixel = image.data + i;
    Color<Number> color;
    for (std::size_t channel = 0; channel < 3; ++channel) {
      color[channel] =
          static_cast<Number>(pixel[static_cast<std::int64_t>(channel) * image.pixels]) /
          kBrightest<Element>;
    }
    Color<Number> hsv = to_hsv(color);
    hsv[0] += static_cast<Number>(shift);
    if (hsv[0] < 0) hsv[0] += 1;
    if (hsv[0] > 1) hsv[0] -= 1;
    color = to_rgb(hsv);
    // Like torchvision: each integer gets an equal part of [0, 1].
    const auto scale =
        std::is_integral_v<Element> ? static_cast<Number>(255 + 1.0 - 1e-3) : Number(1);
    for (std::size_t channel = 0; channel < 3; ++channel) {
      pixel[static_cast<std::int64_t>(channel) * image.pixels] =
          static_cast<Element>(color[channel] * scale);
    }
  }
}

class ColorJitter final : public detail::Operation {
 public:
  ColorJitter(double brightness, double contrast, double saturation, double hue)
      : settings_{brightness, contrast, saturation, hue} {
    for (const double setting : settings_) {
      if (setting >= 0 && std::isfinite(setting)) continue;
      throw UsageError(join_message("color_jitter with brightness ", brightness, ", contrast ",
                                    contrast, ", saturation ", saturation, ", hue ", hue),
                       "give 0 or more for each; 0 leaves it as it is");
    }
    if (hue > 0.5) {
      throw UsageError(join_message("color_jitter with hue ", hue),
                       "give at most 0.5, half a turn of the colour wheel in either direction");
    }
  }

  std::string_view name() const override { return "color_jitter"; }

  Form result(const Form& input) const override {
    detail::planes_of(input);
    if (input.dtype != at::kByte && input.dtype != at::kFloat && input.dtype != at::kDouble) {
      throw UsageError(join_message("color_jitter of ", detail::describe(input)),
                       "give uint8, or float32 or float64 in [0, 1]");
    }
    if (settings_[kSaturation] > 0) check_colors("the saturation of color_jitter", input);
    if (settings_[kHue] > 0) check_colors("the hue of color_jitter", input);
    return input;
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& random) const override {
    std::array<std::size_t, 4> order{kBrightness, kContrast, kSaturation, kHue};
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i],
                order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i) + 1))]);
    }
    // All four are drawn even if unused, so that switching one off does not change the others.
    std::array<double, 4> draws{};
    for (std::size_t i = 0; i < draws.size(); ++i) {
      const double setting = settings_[i];
      const Range range =
          i == kHue ? Range{-setting, setting} : Range{std::max(0.0, 1 - setting), 1 + setting};
      draws[i] = range.draw(random);
    }
    detail::copy_sample(from, input, output);
    switch (from.dtype) {
      case at::kByte:
        return adjust_images<std::uint8_t>(from, output, order, draws);
      case at::kDouble:
        return adjust_images<double>(from, output, order, draws);
      default:
        return adjust_images<float>(from, output, order, draws);
    }
  }

 private:
  static constexpr std::size_t kBrightness = 0;
  static constexpr std::size_t kContrast = 1;
  static constexpr std::size_t kSaturation = 2;
  static constexpr std::size_t kHue = 3;

  template <typename Element>
  void adjust_images(const Form& form, std::byte* sample, const std::array<std::size_t, 4>& order,
                     const std::array<double, 4>& draws) const {
    Image<Element> image{reinterpret_cast<Element*>(sample), detail::channels_of(form),
                         pixels_of(form)};
    Element* const end = image.data + form.elements();
    for (; image.data != end; image.data += image.elements()) {
      for (const std::size_t adjustment : order) {
        if (settings_[adjustment] > 0) adjust(image, adjustment, draws[adjustment]);
      }
    }
  }

  template <typename Element>
  static void adjust(const Image<Element>& image, std::size_t adjustment, double draw) {
    switch (adjustment) {
      case kBrightness:
        return adjust_brightness(image, draw);
      case kContrast:
        return adjust_contrast(image, draw);
      case kSaturation:
        return adjust_saturation(image, draw);
      default:
        return adjust_hue(image, draw);
    }
  }

  std::array<double, 4> settings_;
};

// Writes the grey image `copies` times.
void write_gray(const Form& from, std::int64_t copies, const std::byte* input, std::byte* output) {
  const std::int64_t pixels = pixels_of(from);
  const std::int64_t count = from.elements();
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, from.dtype, "to_grayscale", [&] {
    const auto* x = reinterpret_cast<const scalar_t*>(input);
    auto* y = reinterpret_cast<scalar_t*>(output);
    for (std::int64_t image = 0; image < count; image += 3 * pixels) {
      const scalar_t* const gray = y;
      for (std::int64_t i = 0; i < pixels; ++i) *y++ = gray_of(x + image + i, pixels);
      for (std::int64_t copy = 1; copy < copies; ++copy) y = std::copy_n(gray, pixels, y);
    }
  });
}

class ToGrayscale final : public detail::Operation {
 public:
  explicit ToGrayscale(std::int64_t channels) : channels_(channels) {
    if (channels != 1 && channels != 3) {
      throw UsageError(join_message("to_grayscale with ", channels, " channels"), "give 1 or 3");
    }
  }

  std::string_view name() const override { return "to_grayscale"; }

  Form result(const Form& input) const override {
    check_colors("to_grayscale", input);
    detail::check_numbers("to_grayscale", input);
    Form output = input;
    output.sizes[output.sizes.size() - 3] = channels_;
    return output;
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    write_gray(from, channels_, input, output);
  }

 private:
  std::int64_t channels_;
};

class RandomGrayscale final : public detail::RandomApply {
 public:
  explicit RandomGrayscale(double probability) : RandomApply("random_grayscale", probability) {}

  Form result(const Form& input) const override {
    check_colors("random_grayscale", input);
    detail::check_numbers("random_grayscale", input);
    return input;
  }

 private:
  void change(const Form& from, const std::byte* input, std::byte* output) const override {
    write_gray(from, 3, input, output);
  }
};

}  // namespace

Transform color_jitter(double brightness, double contrast, double saturation, double hue) {
  return Transform(std::make_shared<ColorJitter>(brightness, contrast, saturation, hue));
}

Transform to_grayscale(std::int64_t channels) {
  return Transform(std::make_shared<ToGrayscale>(channels));
}

Transform random_grayscale(double probability) {
  return Transform(std::make_shared<RandomGrayscale>(probability));
}

}  // namespace trireme::data
