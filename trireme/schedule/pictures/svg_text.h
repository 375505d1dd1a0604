// SPDX-License-Identifier: Apache-2.0
// The parts of an SVG that pictures over time share: numbers, texts, ticks, and the document.
#pragma once

#include <string>
#include <string_view>

namespace trireme::schedule {

/// Returns a number with at most two digits after the point, without trailing zeros.
std::string svg_number(double value);

/// Escapes a text for the content of an element. Control characters become question marks.
std::string svg_escaped(std::string_view text);

/// Returns a text element with a class.
std::string svg_text(std::string_view style, double x, double y, std::string_view text);

/// Returns a self-contained document on a background of class `back`.
/// @param style a style element.
/// @param body its other elements.
std::string svg_document(double width, double height, std::string_view title,
                         std::string_view style, std::string_view body);

/// Returns a round distance between ticks, 1, 2 or 5 times a power of ten, so that a length has at
/// most `most_ticks` of them.
double tick_distance(double length, double most_ticks);

}  // namespace trireme::schedule
