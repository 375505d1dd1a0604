// SPDX-License-Identifier: Apache-2.0
// Writes IDX and CIFAR-10 files with known contents.
#pragma once

#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::data::testing {

/// Writes a file compressed by gzip.
inline void write_gzip(const std::filesystem::path& path, const std::string& bytes) {
  const gzFile file = ::gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  ASSERT_EQ(::gzclose(file), Z_OK);
}

/// Returns the four bytes of a number, most significant first.
inline std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<char>(value >> shift & 0xFFU));
  return bytes;
}

/// Returns an IDX file of images; image i has the pixels i, i + 1, ... modulo 256.
inline std::string idx_images(std::uint32_t count, std::uint32_t height, std::uint32_t width) {
  std::string bytes =
      big_endian(0x803) + big_endian(count) + big_endian(height) + big_endian(width);
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t pixel = 0; pixel < height * width; ++pixel)
      bytes.push_back(static_cast<char>(i + pixel));
  }
  return bytes;
}

/// Returns an IDX file of labels; label i is i modulo 10.
inline std::string idx_labels(std::uint32_t count) {
  std::string bytes = big_endian(0x801) + big_endian(count);
  for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i % 10));
  return bytes;
}

/// Writes both splits with 28 x 28 images, compressed by gzip.
inline void write_mnist(const std::filesystem::path& folder, std::uint32_t train,
                        std::uint32_t test) {
  write_gzip(folder / "train-images-idx3-ubyte.gz", idx_images(train, 28, 28));
  write_gzip(folder / "train-labels-idx1-ubyte.gz", idx_labels(train));
  write_gzip(folder / "t10k-images-idx3-ubyte.gz", idx_images(test, 28, 28));
  write_gzip(folder / "t10k-labels-idx1-ubyte.gz", idx_labels(test));
}

/// Returns records with labels first, first + 1, ... modulo 10; every byte of an image is its
/// label.
inline std::string cifar_records(int first, int count) {
  std::string bytes;
  for (int i = first; i < first + count; ++i) bytes += std::string(3073, static_cast<char>(i % 10));
  return bytes;
}

}  // namespace trireme::data::testing
