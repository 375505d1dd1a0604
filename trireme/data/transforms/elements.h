// SPDX-License-Identifier: Apache-2.0
// Common parts of the built-in transforms: checks of samples, and the arithmetic of one element.
#pragma once

#include <trireme/base/error.h>
#include <trireme/data/detail/operation.h>

#include <ATen/Dispatch.h>
#include <c10/util/TypeCast.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace trireme::data::detail {

/// The maximum number of padded pixels on one side; sums of such numbers cannot overflow.
inline constexpr std::int64_t kMostPadding = std::int64_t{1} << 31;

/// The type for arithmetic on an element: double for float64, float for all other types.
template <typename Element>
using Real = std::conditional_t<std::is_same_v<Element, double>, double, float>;

/// Converts the result of arithmetic to an element; integers are rounded to the nearest.
template <typename Element, typename Number>
Element rounded(Number value) {
  // The conversion truncates. std::nearbyint would be a call of the library for every element.
  if constexpr (std::is_integral_v<Element>) value += value < 0 ? Number(-0.5) : Number(0.5);
  return static_cast<Element>(value);
}

/// Calls `body` with an unsigned integer of the size of an element. Moving elements does not depend
/// on their type.
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

/// Copies a sample. An empty sample may have a null pointer, which memcpy must not get.
inline void copy_sample(const Form& form, const std::byte* input, std::byte* output) {
  if (form.bytes() > 0) std::memcpy(output, input, form.bytes());
}

/// Returns the form with another height and width.
inline Form with_sides(const Form& input, std::int64_t height, std::int64_t width) {
  Form output = input;
  output.sizes[output.sizes.size() - 2] = height;
  output.sizes.back() = width;
  return output;
}

/// Returns the size of the dimension before height and width, or 1 if there is none.
inline std::int64_t channels_of(const Form& form) {
  planes_of(form);
  return form.sizes.size() < 3 ? 1 : form.sizes[form.sizes.size() - 3];
}

/// Throws UsageError if the height or width to produce is not positive.
inline void check_sides(std::string_view name, std::int64_t height, std::int64_t width) {
  if (height >= 1 && width >= 1) return;
  throw UsageError(join_message(name, " to ", height, " x ", width),
                   "give a height and a width of at least 1");
}

/// Throws UsageError if the probability is not in [0, 1].
inline void check_probability(std::string_view name, double probability) {
  if (probability >= 0 && probability <= 1) return;
  throw UsageError(join_message(name, " with probability ", probability), "give one from 0 to 1");
}

/// Throws UsageError if the image has no pixels. For transforms that change the size, because there
/// would be no pixel to show.
inline void check_pixels(std::string_view name, const Form& form) {
  const Planes planes = planes_of(form);
  if (planes.height > 0 && planes.width > 0) return;
  throw UsageError(join_message(name, " of an image without pixels: ", describe(form)),
                   "leave such samples out");
}

/// Throws UsageError if the dtype is not numeric. For transforms that compute with elements.
inline void check_numbers(std::string_view name, const Form& form) {
  switch (form.dtype) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return;
    default:
      throw UsageError(join_message(name, " cannot compute with ", describe(form)),
                       "type_cast the column to uint8 or float32 first");
  }
}

/// Returns `value` in the dtype of `form` in the first bytes of the array. Throws UsageError if the
/// dtype is an integer or bool that cannot represent it.
inline std::array<std::byte, 8> element_of(std::string_view name, double value, const Form& form) {
  std::array<std::byte, 8> bytes{};
  if (value == 0) return bytes;  // Zero bits are 0 in every dtype.
  if (form.dtype != at::kBool) check_numbers(name, form);
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, form.dtype, "element_of", [&] {
    if constexpr (std::is_integral_v<scalar_t>) {
      using Limits = std::numeric_limits<scalar_t>;
      const bool is_held = value >= static_cast<double>(Limits::min()) &&
                           value < static_cast<double>(Limits::max()) + 1.0 &&
                           value == std::trunc(value);
      if (!is_held) {
        throw UsageError(join_message(name, " with the value ", value, " in ", describe(form)),
                         "give a value that the dtype can hold, or type_cast the column first");
      }
    }
    const auto element = c10::convert<scalar_t>(value);
    std::memcpy(bytes.data(), &element, sizeof(element));
  });
  return bytes;
}

}  // namespace trireme::data::detail
