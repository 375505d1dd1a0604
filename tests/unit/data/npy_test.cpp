// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/npy.h>

#include <trireme/base/error.h>
#include <trireme/data/dataset_views.h>
#include <trireme/data/files/npy_format.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cstring>

namespace trireme::data {
namespace {

using test::message_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Sizes = std::vector<std::int64_t>;

// What comes before the elements in a file that numpy.save wrote with NumPy 2.4: the header fills
// up with spaces to a multiple of 64.
std::string header_of(std::string dictionary, int major = 1, std::size_t multiple = 64) {
  const std::size_t preamble = major == 1 ? 10 : 12;
  while ((preamble + dictionary.size() + 1) % multiple != 0) dictionary += ' ';
  dictionary += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += {static_cast<char>(major), '\0'};
  for (std::size_t i = 8; i < preamble; ++i)
    bytes += static_cast<char>(dictionary.size() >> (8 * (i - 8)) & 0xFFU);
  return bytes + dictionary;
}

std::string dictionary_of(const std::string& descr, const std::string& shape,
                          const std::string& is_fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + is_fortran + ", 'shape': " + shape +
         ", }";
}

template <typename Element>
std::string bytes_of(const std::vector<Element>& elements) {
  std::string bytes(elements.size() * sizeof(Element), '\0');
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

class Npy : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& bytes) {
    write_file(path_, bytes);
    return path_;
  }

  std::string error_of(const std::string& bytes) {
    write(bytes);
    return message_of<DataError>([&] { read_npy(path_); });
  }

  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "array.npy";
};

// numpy.save(path, numpy.array([[1, -2, 3.5], [4, 5, 6e30]], "<f4")), byte for byte.
TEST_F(Npy, ReadsWhatNumPyWrites) {
  std::string file("\x93NUMPY\x01\x00v\x00", 10);
  file += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  file.resize(127, ' ');
  file += '\n';
  file += std::string(
      "\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x00\x60\x40\x00\x00\x80\x40\x00\x00\xa0\x40\x17\x76"
      "\x97\x72",
      24);
  EXPECT_EQ(file.substr(0, 128), header_of(dictionary_of("<f4", "(2, 3)")));
  const at::Tensor array = read_npy(write(file));
  EXPECT_EQ(array.scalar_type(), at::kFloat);
  EXPECT_EQ(array.sizes(), (Sizes{2, 3}));
  const std::vector<float> expected = {1, -2, 3.5F, 4, 5, 6e30F};
  for (std::int64_t i = 0; i < 6; ++i)
    EXPECT_EQ(array.view({6})[i].item<float>(), expected[static_cast<std::size_t>(i)]);
}

TEST_F(Npy, ReadsEachDtype) {
  const std::vector<std::pair<std::string, at::ScalarType>> dtypes = {
      {"|b1", at::kBool},         {"|u1", at::kByte},          {"<u2", at::kUInt16},
      {"<u4", at::kUInt32},       {"<u8", at::kUInt64},        {"|i1", at::kChar},
      {"<i2", at::kShort},        {"<i4", at::kInt},           {"<i8", at::kLong},
      {"<f2", at::kHalf},         {"<f4", at::kFloat},         {"<f8", at::kDouble},
      {"<c8", at::kComplexFloat}, {"<c16", at::kComplexDouble}};
  for (const auto& [descr, dtype] : dtypes) {
    const std::size_t bytes = 6 * c10::elementSize(dtype);
    std::string elements;
    for (std::size_t i = 0; i < bytes; ++i) elements += static_cast<char>(i % 2);
    const at::Tensor array = read_npy(write(header_of(dictionary_of(descr, "(3, 2)")) + elements));
    EXPECT_EQ(array.scalar_type(), dtype) << descr;
    EXPECT_EQ(array.sizes(), (Sizes{3, 2}));
    EXPECT_TRUE(array.is_contiguous());
    EXPECT_EQ(std::memcmp(array.const_data_ptr(), elements.data(), bytes), 0) << descr;
  }
}

TEST_F(Npy, ReadsFormat2AndHeadersOfOtherWriters) {
  const std::string elements = bytes_of<std::int32_t>({7, 8, 9});
  EXPECT_TRUE(at::equal(read_npy(write(header_of(dictionary_of("<i4", "(3,)"), 2) + elements)),
                        at::arange(7, 10).to(at::kInt)));
  // Other order, quotes and spaces, and elements at an odd offset.
  const std::string odd =
      header_of("{ \"shape\":(3 , ) ,'fortran_order' :False,'descr':'<i4' }", 1, 1);
  ASSERT_EQ(odd.size() % 2, 1);
  EXPECT_TRUE(at::equal(read_npy(write(odd + elements)), at::arange(7, 10).to(at::kInt)));
}

TEST_F(Npy, ReadsEmptyArraysAndSingleNumbers) {
  EXPECT_EQ(read_npy(write(header_of(dictionary_of("<f8", "(0, 4)")))).sizes(), (Sizes{0, 4}));
  write(header_of(dictionary_of("<f8", "()")) + bytes_of<double>({2.5}));
  EXPECT_EQ(read_npy(path_).item<double>(), 2.5);
  EXPECT_THAT(message_of<DataError>([&] { npy(path_); }),
              HasSubstr(path_.string() + " holds a single number"));
}

TEST_F(Npy, MakesADataSetOfItsRows) {
  write(header_of(dictionary_of("<i8", "(2, 2)")) + bytes_of<std::int64_t>({1, 2, 3, 4}));
  const auto set = npy(path_, "x");
  EXPECT_THAT(set->columns(), ElementsAre("x"));
  EXPECT_EQ(set->size(), 2);
  EXPECT_TRUE(at::equal(set->get(1)[0], at::arange(3, 5)));
  EXPECT_EQ(set->stored().size(), 1);
  EXPECT_THAT(zip(npy(path_), npy(path_, "y"))->columns(), ElementsAre("array", "y"));
}

TEST_F(Npy, DoesNotChangeTheFileWhereTheTensorIsWritten) {
  const std::string file = header_of(dictionary_of("<i8", "(2,)")) + bytes_of<std::int64_t>({1, 2});
  read_npy(write(file)).fill_(9);
  EXPECT_EQ(test::read_file(path_), file);
}

TEST_F(Npy, RefusesFortranOrderAndBigEndianByName) {
  EXPECT_THAT(error_of(header_of(dictionary_of("<f8", "(2, 3)", "True")) + std::string(48, 'x')),
              AllOf(HasSubstr(path_.string() + ": the elements are in Fortran order"),
                    HasSubstr("ascontiguousarray")));
  EXPECT_THAT(
      error_of(header_of(dictionary_of(">i2", "(3,)")) + std::string(6, 'x')),
      AllOf(HasSubstr(path_.string() + ": the elements are of dtype '>i2', which is big-endian"),
            HasSubstr("newbyteorder('<')")));
  EXPECT_THAT(error_of(header_of(dictionary_of("=i2", "(3,)")) + std::string(6, 'x')),
              HasSubstr("'=i2', which is not said to be little-endian"));
}

TEST_F(Npy, RefusesDtypesThatLibTorchLacks) {
  for (const std::string descr : {"<U2", "|S2", "<M8[s]", "|O", "<f16", "|V3", "<", ""}) {
    EXPECT_THAT(error_of(header_of(dictionary_of(descr, "(3,)"))),
                HasSubstr("the elements are of dtype '" + descr + "', which is not supported"));
  }
  EXPECT_THAT(
      error_of(header_of("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,), }")),
      HasSubstr("structures with fields"));
}

TEST_F(Npy, RefusesFilesOfOtherKindsAndFormats) {
  EXPECT_THAT(
      error_of("PK\x03\x04 and so on"),
      AllOf(HasSubstr(path_.string() + ": offset 0: not the magic string"), HasSubstr(".npz")));
  EXPECT_THAT(error_of(""), HasSubstr("offset 0: not the magic string"));
  EXPECT_THAT(error_of(header_of(dictionary_of("<i4", "(0,)"), 3)),
              HasSubstr("offset 6: format 3.0, expected 1.0 or 2.0"));
  EXPECT_THAT(message_of<DataError>([&] { read_npy(folder_ / "nowhere.npy"); }),
              HasSubstr("no file " + (folder_ / "nowhere.npy").string()));
}

TEST_F(Npy, RefusesFilesThatAreCutShortOrTooLong) {
  const std::string file = header_of(dictionary_of("<i4", "(2,)")) + "12345678";
  EXPECT_THAT(error_of(file.substr(0, 9)),
              HasSubstr("offset 8: the file is cut short in its header"));
  EXPECT_THAT(error_of(file.substr(0, 100)),
              HasSubstr("offset 10: the file is cut short in its header of 118 bytes"));
  EXPECT_THAT(error_of(file.substr(0, 133)),
              AllOf(HasSubstr(path_.string() +
                              ": offset 128: the elements have 5 bytes, but the header promises 8"),
                    HasSubstr("cut short")));
  EXPECT_THAT(error_of(file + "9"),
              HasSubstr("the elements have 9 bytes, but the header promises 8"));
  // No element where a size is 0.
  EXPECT_THAT(error_of(header_of(dictionary_of("<i4", "(4294967296, 0, 3)")) + "1"),
              HasSubstr("have 1 bytes, but the header promises 0"));
}

// Also beside a size of 0: LibTorch multiplies the others for its strides.
TEST_F(Npy, RefusesShapesThatOverflow) {
  for (const std::string last : {"2", "0"}) {
    EXPECT_THAT(error_of(header_of(dictionary_of("<i4", "(4294967296, 4294967296, " + last + ")"))),
                HasSubstr("the shape of 3 dimensions has more elements than memory can address"));
  }
  std::string shape = "(";
  for (int dimension = 0; dimension < 65; ++dimension) shape += "1,";
  EXPECT_THAT(error_of(header_of(dictionary_of("<i4", shape + ")")) + "1234"),
              HasSubstr("the shape has 65 dimensions, more than NumPy's 64"));
}

TEST_F(Npy, NamesTheOffsetInAHeaderThatCannotBeRead) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"hello", "offset 10: the header cannot be read: expected '{'"},
      {"{descr", "offset 11: the header cannot be read: expected '''"},
      {"{'descr: 1", "expected the end of a string"},
      {"{'descr' 1", "offset 19: the header cannot be read: expected ':'"},
      {"{'color': 1}", "expected the key 'descr', 'fortran_order' or 'shape' before this"},
      {"{'fortran_order': 1}", "expected True or False"},
      {"{'shape': 3}", "expected '('"},
      {"{'shape': (-3,)}", "expected a size of at least 0"},
      {"{'shape': (99999999999999999999,)}", "expected a size of at least 0"},
      {"{'shape': (3 4)}", "expected ')'"},
      {"{'shape': (3,) 'descr': '<i4'}", "expected '}'"},
      {dictionary_of("<i4", "(3,)") + "x", "expected the end of the header"},
      {"{'shape': (3,)}", "expected the keys 'descr', 'fortran_order' and 'shape'"},
      {"{}", "expected the keys"},
      {"{", "expected '''"},
  };
  for (const auto& [dictionary, expected] : cases)
    EXPECT_THAT(error_of(header_of(dictionary)), HasSubstr(expected)) << dictionary;
}

TEST(NpyHeader, IsThatOfNumpy) {
  const std::vector<std::pair<Sizes, std::string>> shapes = {
      {{}, "()"}, {{3}, "(3,)"}, {{3, 4}, "(3, 4)"}};
  for (const auto& [shape, text] : shapes) {
    EXPECT_EQ(make_npy_header({.dtype = "i8", .shape = shape}),
              header_of(dictionary_of("<i8", text)));
  }
  EXPECT_EQ(make_npy_header({.dtype = "u1", .shape = {2}}),
            header_of(dictionary_of("|u1", "(2,)")));
}

}  // namespace
}  // namespace trireme::data
