// SPDX-License-Identifier: Apache-2.0
// Common parts of the safetensors reader and writer: names of dtypes, limits, and the header.
// Internal to this component.
#pragma once

#include <trireme/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

static_assert(std::endian::native == std::endian::little, "the format stores little-endian values");

inline constexpr std::int64_t kLengthBytes = 8;  ///< The bytes of the length field.
/// The maximum size of a header, which is the limit of the format's reference reader.
inline constexpr std::int64_t kMaximumHeaderBytes = 100'000'000;
/// The key of the metadata in a header.
inline constexpr std::string_view kMetadataKey = "__metadata__";
/// The prefix of metadata keys with checksums.
inline constexpr std::string_view kChecksumPrefix = "trireme.crc32.";
/// Key of the dtype of a complex tensor, which is stored as pairs of real numbers.
inline constexpr std::string_view kComplexPrefix = "trireme.complex.";

/// A dtype and its name in files.
struct Dtype {
  std::string_view name;  ///< The name in files.
  at::ScalarType type;    ///< The dtype.
};

/// Complex tensors are stored as pairs of real numbers, because readers of the format support C64
/// only from version 0.7 on and the other two not at all. The index uses these names.
inline constexpr std::array kDtypes = {
    Dtype{"C128", at::kComplexDouble},
    Dtype{"C64", at::kComplexFloat},
    Dtype{"C32", at::kComplexHalf},
    Dtype{"F64", at::kDouble},
    Dtype{"F32", at::kFloat},
    Dtype{"F16", at::kHalf},
    Dtype{"BF16", at::kBFloat16},
    Dtype{"F8_E4M3", at::kFloat8_e4m3fn},
    Dtype{"F8_E5M2", at::kFloat8_e5m2},
    Dtype{"I64", at::kLong},
    Dtype{"I32", at::kInt},
    Dtype{"I16", at::kShort},
    Dtype{"I8", at::kChar},
    Dtype{"U64", at::kUInt64},
    Dtype{"U32", at::kUInt32},
    Dtype{"U16", at::kUInt16},
    Dtype{"U8", at::kByte},
    Dtype{"BOOL", at::kBool},
};

/// Returns the entry of a dtype, or null if it is not supported.
inline const Dtype* find_dtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}
/// Returns the entry of a dtype, or null if it is not supported.
inline const Dtype* find_dtype(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == type) return &dtype;
  }
  return nullptr;
}

/// Returns the size of an element.
inline std::int64_t item_bytes(at::ScalarType type) {
  return static_cast<std::int64_t>(c10::elementSize(type));
}

/// Throws UsageError if the format cannot store the tensor under that name.
void check_storable(const std::string& name, const at::Tensor& tensor);

/// Returns the values as one dense block of host memory; the tensor itself if it is dense already.
at::Tensor dense(const at::Tensor& tensor);

/// Returns the bytes of a dense tensor in host memory.
inline std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// A tensor as a header describes it; offsets count from the beginning of the file.
struct HeaderTensor {
  std::string name;                   ///< The name of the tensor.
  at::ScalarType type = at::kFloat;   ///< The dtype.
  std::vector<std::int64_t> shape{};  ///< The shape.
  std::int64_t begin = 0;             ///< The offset of the first byte.
  std::int64_t end = 0;               ///< The offset after the last byte.
};

/// Sorts tensors by descending size of an element, then by name, like the reference writer. So
/// every tensor is aligned for its dtype, although the format allows no gaps.
void sort_for_file(std::vector<HeaderTensor>& tensors);

/// Returns the length field, the JSON text and the spaces that align the first tensor. Sets the
/// offsets of `tensors`, which are in the order of the file. Checksums are by name and take eight
/// hexadecimal digits each, so the length does not depend on their values.
std::string encode_header(std::vector<HeaderTensor>& tensors, const Metadata& metadata,
                          const std::map<std::string, std::uint32_t>& checksums);

/// The header of a file. Checksums are by name of the tensor, as written; files of other programs
/// have none.
struct FileHeader {
  std::vector<HeaderTensor> tensors;             ///< In the order of the file.
  Metadata metadata;                             ///< Without the checksums.
  std::map<std::string, std::string> checksums;  ///< The checksums, as hexadecimal digits.
  std::int64_t file_bytes = 0;                   ///< The size of the file.
  std::int64_t header_bytes = 0;                 ///< The number of bytes before the first tensor.
  std::uint32_t header_crc32 = 0;                ///< The CRC-32 of these bytes.
};

/// Reads a header. Throws CheckpointError with file and offset.
FileHeader read_header(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
