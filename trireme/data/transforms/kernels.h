// SPDX-License-Identifier: Apache-2.0
// Inner loops for the usual elements of images, uint8 and float32. kernels.cpp is compiled once for
// each instruction set, and the best one for the machine is chosen when the program starts. All
// return the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data::detail {

/// For each element of a resized line: the two elements of the original around it, and their
/// weights.
struct ResizedLine {
  /// Computes positions and weights.
  /// @param from the number of elements of the original line, at least 1.
  /// @param to the number of elements of the resized line, at least 1.
  ResizedLine(std::int64_t from, std::int64_t to);

  /// Returns the number of elements of the resized line.
  std::size_t size() const { return weight_of_second.size(); }

  /// The index of the element before.
  std::vector<std::int32_t> first;
  /// The index of the element after.
  std::vector<std::int32_t> second;
  /// The weight of the element before.
  std::vector<float> weight_of_first;
  /// The weight of the element after.
  std::vector<float> weight_of_second;
};

/// The number of readable elements after the end of an input line; kernels load whole vectors.
constexpr std::size_t kLinePadding = 8;

/// The loops for one instruction set.
struct Kernels {
  /// The name of the instruction set.
  const char* name;

  /// Computes out[i] = first[i] * (1 - weight) + second[i] * weight.
  void (*blend_bytes)(const std::uint8_t* first, const std::uint8_t* second, float weight,
                      std::size_t count, float* out);
  /// Computes the same as blend_bytes() for float32.
  void (*blend_floats)(const float* first, const float* second, float weight, std::size_t count,
                       float* out);

  /// Computes out[i] = in[line.first[i]] * line.weight_of_first[i] + in[line.second[i]] *
  /// line.weight_of_second[i]. Results in uint8 are rounded to the nearest. `in` is padded by
  /// kLinePadding, and its values are from 0 to 255 for uint8.
  void (*stretch_to_bytes)(const float* in, const ResizedLine& line, std::uint8_t* out);
  /// Computes the same as stretch_to_bytes(), without rounding.
  void (*stretch_to_floats)(const float* in, const ResizedLine& line, float* out);

  /// Computes out[i] = in[i] * scale + shift.
  void (*rescale_bytes)(const std::uint8_t* in, std::size_t count, float scale, float shift,
                        float* out);
  /// Computes the same as rescale_bytes() for float32.
  void (*rescale_floats)(const float* in, std::size_t count, float scale, float shift, float* out);

  /// Computes out[i] = (in[i] - mean) / std.
  void (*normalize_bytes)(const std::uint8_t* in, std::size_t count, float mean, float std,
                          float* out);
  /// Computes the same as normalize_bytes() for float32.
  void (*normalize_floats)(const float* in, std::size_t count, float mean, float std, float* out);
};

/// Returns the fastest kernels for this machine.
const Kernels& kernels();

/// Returns all kernels that this machine can run, the fastest last. For tests.
std::span<const Kernels* const> runnable_kernels();

}  // namespace trireme::data::detail
