// SPDX-License-Identifier: Apache-2.0
// Inner loops over the elements that images usually have: uint8 and float32. kernels.cpp is
// compiled once for each set of instructions, and the best that the machine has is chosen when the
// program starts. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data::detail {

/// For each element of a line of a resized image: between which two of the original it lies, and
/// how near to the second.
struct ResizedLine {
  /// @param from, to elements of the original and of the resized line, both at least 1.
  ResizedLine(std::int64_t from, std::int64_t to);

  std::size_t size() const { return weight_of_second.size(); }

  std::vector<std::int32_t> first;
  std::vector<std::int32_t> second;
  std::vector<float> weight_of_first;
  std::vector<float> weight_of_second;
};

/// A line that is read has this many elements more, of any value: vectors are loaded whole.
constexpr std::size_t kLinePadding = 8;

struct Kernels {
  const char* name;

  /// out[i] = first[i] * (1 - weight) + second[i] * weight.
  void (*blend_bytes)(const std::uint8_t* first, const std::uint8_t* second, float weight,
                      std::size_t count, float* out);
  void (*blend_floats)(const float* first, const float* second, float weight, std::size_t count,
                       float* out);

  /// out[i] = in[first of i] * (1 - weight of i) + in[second of i] * weight of i, to uint8 rounded
  /// to the nearest; `in` is padded, and for uint8 from 0 to 255.
  void (*stretch_to_bytes)(const float* in, const ResizedLine& line, std::uint8_t* out);
  void (*stretch_to_floats)(const float* in, const ResizedLine& line, float* out);

  /// out[i] = in[i] * scale + shift.
  void (*rescale_bytes)(const std::uint8_t* in, std::size_t count, float scale, float shift,
                        float* out);
  void (*rescale_floats)(const float* in, std::size_t count, float scale, float shift, float* out);

  /// out[i] = (in[i] - mean) / std.
  void (*normalize_bytes)(const std::uint8_t* in, std::size_t count, float mean, float std,
                          float* out);
  void (*normalize_floats)(const float* in, std::size_t count, float mean, float std, float* out);
};

/// The fastest for this machine.
const Kernels& kernels();

/// All that this machine can run, for tests; the last is the fastest.
std::span<const Kernels* const> runnable_kernels();

}  // namespace trireme::data::detail
