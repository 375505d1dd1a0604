// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/npy.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/mapped_file.h>
#include <trireme/data/files/npy_format.h>

#include <bit>
#include <map>
#include <string_view>
#include <utility>

namespace trireme::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

at::ScalarType dtype_of(const NpyHeader& header) {
  static const std::map<std::string_view, at::ScalarType> dtypes = {
      {"b1", at::kBool},         {"u1", at::kByte},          {"u2", at::kUInt16},
      {"u4", at::kUInt32},       {"u8", at::kUInt64},        {"i1", at::kChar},
      {"i2", at::kShort},        {"i4", at::kInt},           {"i8", at::kLong},
      {"f2", at::kHalf},         {"f4", at::kFloat},         {"f8", at::kDouble},
      {"c8", at::kComplexFloat}, {"c16", at::kComplexDouble}};
  return dtypes.at(header.dtype);
}

}  // namespace

at::Tensor read_npy(const std::filesystem::path& path) {
  const NpyHeader header = read_npy_header(path);
  at::Tensor bytes = detail::map_file(path).narrow(0, header.offset, header.bytes);
  const at::ScalarType dtype = dtype_of(header);
  // NumPy aligns the elements to 16 or 64 bytes, but other programs may not. A tensor must be
  // aligned to its elements, so an unaligned array is copied.
  if (header.offset % static_cast<std::int64_t>(c10::elementSize(dtype)) != 0)
    bytes = bytes.clone();
  return bytes.view(dtype).view(header.shape);
}

std::shared_ptr<const Dataset> npy(const std::filesystem::path& path, std::string column) {
  at::Tensor array = read_npy(path);
  if (array.dim() == 0) {
    throw DataError(join_message(path.string(), " holds a single number, not an array of samples"),
                    "save an array whose first dimension counts the samples");
  }
  return tensors({{std::move(column), std::move(array)}});
}

}  // namespace trireme::data
