// SPDX-License-Identifier: Apache-2.0
// Sound files with contents that the test chose.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::data::testing {

/// Writes whole numbers in the full range of int32: a format of n bits keeps the upper n.
/// @param format SF_FORMAT_… of libsndfile, container and numbers.
/// @param samples the channels of a frame next to each other.
void write_sound(const std::filesystem::path& path, int format, int sample_rate, int channels,
                 const std::vector<std::int32_t>& samples);

/// Writes floating-point numbers as they are.
void write_sound(const std::filesystem::path& path, int format, int sample_rate, int channels,
                 const std::vector<float>& samples);

}  // namespace trireme::data::testing
