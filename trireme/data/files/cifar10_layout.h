// SPDX-License-Identifier: Apache-2.0
// The record of CIFAR-10's binary version: a label of one byte, then the red, green and blue planes
// in row-major order.
#pragma once

#include <cstdint>

namespace trireme::data {

inline constexpr std::int64_t kCifar10Side = 32;  ///< The height and width of an image.
/// The bytes of one colour plane.
inline constexpr std::int64_t kCifar10PlaneBytes = kCifar10Side * kCifar10Side;
/// The bytes of an image.
inline constexpr std::int64_t kCifar10ImageBytes = 3 * kCifar10PlaneBytes;
/// The bytes of a record.
inline constexpr std::int64_t kCifar10RecordBytes = 1 + kCifar10ImageBytes;
inline constexpr std::int64_t kCifar10Classes = 10;  ///< The number of classes.

}  // namespace trireme::data
