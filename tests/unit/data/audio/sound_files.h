// SPDX-License-Identifier: Apache-2.0
// Writes sound files with known contents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::data::testing {

/// Writes integers in the full range of int32; a format of n bits keeps the upper n.
/// @param path the file.
/// @param format container and encoding, SF_FORMAT_… of libsndfile.
/// @param sample_rate the sample rate.
/// @param channels the number of channels.
/// @param samples the samples, with the channels of a frame next to each other.
void write_sound(const std::filesystem::path& path, int format, int sample_rate, int channels,
                 const std::vector<std::int32_t>& samples);

/// Writes floating-point samples unchanged.
void write_sound(const std::filesystem::path& path, int format, int sample_rate, int channels,
                 const std::vector<float>& samples);

}  // namespace trireme::data::testing
