// SPDX-License-Identifier: Apache-2.0
// What reading and writing of the safetensors format share: its names of dtypes, its limits, its
// header. Internal to this component.
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

inline constexpr std::int64_t kLengthBytes = 8;
inline constexpr std::int64_t kMaximumHeaderBytes =
    100'000'000;  // the limit of the format's reference reader
inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr std::string_view kChecksumPrefix = "trireme.crc32.";
// Of a tensor that is complex and stands in the file as real pairs: its dtype.
inline constexpr std::string_view kComplexPrefix = "trireme.complex.";

struct Dtype {
  std::string_view name;
  at::ScalarType type;
};

// Files have complex tensors as pairs of real numbers: the format's readers know C64 from 0.7 on
// and the other two not at all. In the index they go by these names.
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

// Nothing for a dtype that is not known here.
inline const Dtype* find_dtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}
inline const Dtype* find_dtype(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == type) return &dtype;
  }
  return nullptr;
}

inline std::int64_t item_bytes(at::ScalarType type) {
  return static_cast<std::int64_t>(c10::elementSize(type));
}

// Throws UsageError where the format cannot hold the tensor under that name.
void check_storable(const std::string& name, const at::Tensor& tensor);

// The values as one dense block of host memory; the tensor itself where it is that already.
at::Tensor dense(const at::Tensor& tensor);

inline std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// One tensor as a header describes it; offsets count from the begin of the file.
struct HeaderTensor {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The order in which tensors follow each other: wide dtypes first, by name among equals, as the
// reference writer does. Then every tensor is aligned for its dtype although the format allows no
// gaps.
void sort_for_file(std::vector<HeaderTensor>& tensors);

// Length field, JSON and the spaces that align what follows. `tensors` in the order of the file;
// their offsets are filled in. Checksums are by name, eight hexadecimal digits each: the length
// does not depend on their values.
std::string encode_header(std::vector<HeaderTensor>& tensors, const Metadata& metadata,
                          const std::map<std::string, std::uint32_t>& checksums);

// What stands before the tensors of a file. Checksums, which files of other writers lack, are by
// name of the tensor, as written.
struct FileHeader {
  std::vector<HeaderTensor> tensors;  // in the order of the file
  Metadata metadata;                  // without the checksums
  std::map<std::string, std::string> checksums;
  std::int64_t file_bytes = 0;
  std::int64_t header_bytes = 0;
  std::uint32_t header_crc32 = 0;
};

// Throws CheckpointError naming file and offset.
FileHeader read_header(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
