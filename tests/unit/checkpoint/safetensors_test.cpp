// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/safetensors.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Same dtype, shape and bits, not-a-numbers included.
bool bitwise_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto left = a.contiguous();
  const auto right = b.contiguous();
  return left.nbytes() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// A file made by hand: length, header, data.
std::string file_with(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

TEST(Safetensors, KeepsEveryDtypeShapeAndBit) {
  const TemporaryFolder folder;
  TensorMap tensors;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn,
                          at::kFloat8_e5m2, at::kLong, at::kInt, at::kShort, at::kChar, at::kUInt64,
                          at::kUInt32, at::kUInt16, at::kByte, at::kBool}) {
    tensors[std::string("type.") + c10::toString(type)] = torch::randint(0, 2, {3, 5}).to(type);
  }
  tensors["scalar"] = torch::tensor(2.5);
  tensors["empty"] = torch::empty({0, 4});
  tensors["not a number"] = torch::tensor({std::numeric_limits<float>::quiet_NaN(), -0.0F});
  write_safetensors(folder / "all.safetensors", tensors, {{"made by", "a test"}});

  const TensorFile file = read_safetensors(folder / "all.safetensors");
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(bitwise_equal(tensor, file.tensors.at(name))) << name;
  EXPECT_EQ(file.metadata, (Metadata{{"made by", "a test"}}));
}

TEST(Safetensors, KeepsComplexTensorsAsPairsOfRealNumbers) {
  const TemporaryFolder folder;
  const auto path = folder / "complex.safetensors";
  TensorMap tensors;
  for (const auto type : {at::kComplexDouble, at::kComplexFloat, at::kComplexHalf}) {
    tensors[c10::toString(type)] = torch::randn({3, 5}, at::kComplexDouble).to(type);
  }
  tensors["conjugate"] = torch::conj(torch::randn({2, 3}, at::kComplexFloat));
  tensors["scalar"] = torch::randn({}, at::kComplexFloat);
  tensors["empty"] = torch::empty({0, 4}, at::kComplexDouble);
  tensors["pairs"] = torch::randn({3, 2});  // real ones stay as they are
  write_safetensors(path, tensors, {{"made by", "a test"}});
  EXPECT_THAT(read_file(path), AllOf(HasSubstr(R"("ComplexDouble":{"data_offsets":[0,240],)"
                                               R"("dtype":"F64","shape":[3,5,2]})"),
                                     HasSubstr(R"("trireme.complex.scalar":"C64")")));
  const TensorFile file = read_safetensors(path);
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(bitwise_equal(tensor.resolve_conj(), file.tensors.at(name))) << name;
  }
  EXPECT_EQ(file.metadata, (Metadata{{"made by", "a test"}}));
}

TEST(Safetensors, ReadsComplexTensorsOfOtherWriters) {
  const TemporaryFolder folder;
  const at::Tensor values = torch::randn({2}, at::kComplexFloat);
  const std::string bytes(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  write_file(folder / "other.safetensors",
             file_with(R"({"x":{"dtype":"C64","shape":[2],"data_offsets":[0,16]}})", bytes));
  EXPECT_TRUE(torch::equal(read_safetensors(folder / "other.safetensors").tensors.at("x"), values));
}

// Two lists of names that grow with the file make reading it take seconds.
TEST(Safetensors, ReadsTensorsByTheTensOfThousands) {
  const TemporaryFolder folder;
  constexpr int kTensors = 100'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    const std::string number = std::to_string(i);
    header += (i == 0 ? "\"t" : ",\"t") + number +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + number + "," +
              std::to_string(i + 1) + "]}";
  }
  write_file(folder / "many.safetensors", file_with(header + "}", std::string(kTensors, 'x')));
  EXPECT_EQ(read_safetensors(folder / "many.safetensors").tensors.size(), std::size_t{kTensors});
}

TEST(Safetensors, TakesNoMemoryForWhatTheMachineHasNot) {
  const TemporaryFolder folder;
  const auto path = folder / "sparse.safetensors";
  constexpr std::int64_t kBytes = std::int64_t{1} << 42;  // of which none is on the disk
  const std::string header = R"({"x":{"dtype":"U8","shape":[4398046511104],)"
                             R"("data_offsets":[0,4398046511104]}})";
  write_file(path, file_with(header, ""));
  std::filesystem::resize_file(path, 8 + header.size() + std::uintmax_t{kBytes});
  EXPECT_THAT(message_of<CheckpointError>([&] { read_safetensors(path); }),
              AllOf(HasSubstr("tensor 'x' of safetensors file " + path.string() +
                              " takes 4398046511104 bytes of memory"),
                    HasSubstr("hint: read a slice")));
}

TEST(Safetensors, WritesTensorsOfAnyStrides) {
  const TemporaryFolder folder;
  const auto images = torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const TensorMap tensors{
      {"channels last", images},
      {"expanded", torch::randn({1, 3}).expand({4, 3})},
      {"gradient", torch::randn({2, 2}, torch::requires_grad())},
      {"negated view", torch::imag(torch::conj(torch::randn({3}, at::kComplexFloat)))},
      {"slice", torch::randn({6, 6}).slice(1, 1, 4)},
      {"transposed", torch::randn({2, 5}).t()}};
  write_safetensors(folder / "strides.safetensors", tensors);
  const TensorFile file = read_safetensors(folder / "strides.safetensors");
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(torch::equal(tensor, file.tensors.at(name))) << name;
    EXPECT_TRUE(file.tensors.at(name).is_contiguous()) << name;
  }
  EXPECT_TRUE(images.is_contiguous(at::MemoryFormat::ChannelsLast))
      << "the tensor itself has to stay as it was";
}

TEST(Safetensors, AlignsTheDataAndEveryTensorForItsDtype) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors",
                    {{"a", torch::ones({3}, at::kByte)}, {"b", torch::ones({2}, at::kDouble)}});
  const std::string bytes = read_file(folder / "a.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ((8 + length) % 64, 0U);
  EXPECT_THAT(bytes, HasSubstr(R"("b":{"data_offsets":[0,16])"));
  EXPECT_THAT(bytes, HasSubstr(R"("a":{"data_offsets":[16,19])"));
}

TEST(Safetensors, GivesEqualBytesForEqualTensorsAndTheirDigest) {
  const TemporaryFolder folder;
  const TensorMap tensors{{"b", torch::arange(5)}, {"a", torch::ones({2, 2})}};
  const FileDigest digest = write_safetensors(folder / "one.safetensors", tensors);
  EXPECT_EQ(write_safetensors(folder / "two.safetensors", tensors), digest);
  const std::string bytes = read_file(folder / "one.safetensors");
  EXPECT_EQ(bytes, read_file(folder / "two.safetensors"));
  EXPECT_EQ(digest.bytes, static_cast<std::int64_t>(bytes.size()));
  EXPECT_EQ(digest.crc32, ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  EXPECT_EQ(read_safetensors(folder / "one.safetensors").digest, digest);
}

TEST(Safetensors, ReadsFilesOfOtherWritersWithoutChecksums) {
  const TemporaryFolder folder;
  write_file(folder / "other.safetensors",
             file_with(R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "\1\2\3"));
  const auto file = read_safetensors(folder / "other.safetensors");
  EXPECT_TRUE(torch::equal(file.tensors.at("x"), torch::tensor({1, 2, 3}, at::kByte)));
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  const TemporaryFolder folder;
  write_safetensors(folder / "none.safetensors", {});
  EXPECT_TRUE(read_safetensors(folder / "none.safetensors").tensors.empty());
}

TEST(Safetensors, RefusesWhatTheFormatCannotHold) {
  const TemporaryFolder folder;
  const std::vector<std::pair<TensorMap, std::string>> cases = {
      {{{"x", torch::eye(2).to_sparse()}}, "it is sparse or quantized"},
      {{{"x", torch::empty({2}, at::kMeta)}}, "it is on the meta device"},
      {{{"x", at::Tensor()}}, "it is undefined"},
      {{{"__metadata__", torch::ones({1})}}, "the format reserves this name"},
      {{{"x\xff", torch::ones({1})}}, "valid UTF-8"},
  };
  for (const auto& [tensors, expected] : cases) {
    EXPECT_THAT(
        message_of<UsageError>([&] { write_safetensors(folder / "x.safetensors", tensors); }),
        HasSubstr(expected));
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(Safetensors, LeavesTheOldFileWhereItCannotWrite) {
  EXPECT_THAT(
      message_of<CheckpointError>([] { write_safetensors("/proc/no/such.safetensors", {}); }),
      AllOf(HasSubstr("/proc/no/such.safetensors"), HasSubstr("No such file")));
}

TEST(Safetensors, RefusesATensorThatChangesMeanwhile) {
  const TemporaryFolder folder;
  int calls = 0;
  const TensorSource source{.shape = {2}, .values = [&] { return torch::ones({2}) * ++calls; }};
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { write_safetensors_from(folder / "x.safetensors", {{"x", source}}); }),
              AllOf(HasSubstr("x.safetensors: tensor 'x' changed while it was written"),
                    HasSubstr("hint:")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, NamesTheTensorWhoseBytesAreDamaged) {
  const TemporaryFolder folder;
  const auto path = folder / "damaged.safetensors";
  write_safetensors(path, {{"first", torch::zeros({4})}, {"second", torch::zeros({4})}});
  std::string bytes = read_file(path);
  bytes.back() ^= 1;
  write_file(path, bytes);
  EXPECT_THAT(message_of<CheckpointError>([&] { read_safetensors(path); }),
              AllOf(HasSubstr(path.string()), HasSubstr("tensor 'second'"), HasSubstr("CRC-32")));
}

TEST(Safetensors, NamesTheTensorWhereAFileIsCutShort) {
  const TemporaryFolder folder;
  const auto path = folder / "short.safetensors";
  write_safetensors(path, {{"first", torch::zeros({4})}, {"second", torch::zeros({4})}});
  const std::string bytes = read_file(path);
  write_file(path, bytes.substr(0, bytes.size() - 5));
  EXPECT_THAT(
      message_of<CheckpointError>([&] { read_safetensors(path); }),
      AllOf(HasSubstr("is cut short: tensor 'second' takes offsets " +
                      std::to_string(bytes.size() - 16) + " to " + std::to_string(bytes.size())),
            HasSubstr("the file has " + std::to_string(bytes.size() - 5) + " bytes")));
  // Wherever it is cut, it is an error and never a crash.
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    write_file(path, bytes.substr(0, length));
    EXPECT_THROW(read_safetensors(path), CheckpointError) << length;
  }
}

TEST(Safetensors, RejectsEveryDamagedByte) {
  // The file's own checksums cover tensors; a damaged header either fails to parse or changes the
  // digest.
  const TemporaryFolder folder;
  const auto path = folder / "byte.safetensors";
  const FileDigest digest = write_safetensors(path, {{"x", torch::arange(7)}});
  const std::string bytes = read_file(path);
  for (std::size_t place = 0; place < bytes.size(); ++place) {
    std::string damaged = bytes;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x10);
    write_file(path, damaged);
    try {
      EXPECT_NE(read_safetensors(path).digest, digest) << place;
    } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch): the expected outcome
    }
  }
}

TEST(Safetensors, SaysWhatIsWrongWithAHeader) {
  const TemporaryFolder folder;
  const auto path = folder / "header.safetensors";
  const std::string good = R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"abc", "is cut short: it has 3 bytes"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff") + "abc",
       "the header is said to take 18446744073709551615 bytes"},
      {file_with("{\"x\":", ""), "not valid JSON at offset 1"},
      {file_with("{\"x\":1e999}", ""), "a number that is out of range"},
      {file_with("[1]", ""), "expected a JSON object"},
      {file_with(good, "abcd"), "something follows the last tensor"},
      {file_with(R"({"x":7})", ""), "tensor 'x' lacks one of dtype, shape, data_offsets"},
      {file_with(R"({"x":{"dtype":"F4","shape":[3],"data_offsets":[0,3]}})", "abc"), "of dtype F4"},
      {file_with(R"({"x":{"dtype":8,"shape":[3],"data_offsets":[0,3]}})", "abc"),
       "a dtype that is not a string"},
      {file_with(R"({"x":{"dtype":"U8","shape":3,"data_offsets":[0,3]}})", "abc"),
       "a shape that is not a list"},
      {file_with(R"({"x":{"dtype":"U8","shape":[-3],"data_offsets":[0,3]}})", "abc"),
       "has -3 in its shape"},
      {file_with(R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0]}})", "abc"),
       "data_offsets that are not [begin, end]"},
      {file_with(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,3]}})", "abc"),
       "takes 4 bytes"},
      {file_with(R"({"x":{"dtype":"U8","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}})",
                 ""),
       "the impossible shape"},
      {file_with(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "abc"),
       "leaves a hole"},
      {file_with(
           R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],)"
           R"("data_offsets":[1,3]}})",
           "abc"),
       "tensor 'y' begins at offset"},
      {file_with(
           R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],)"
           R"("data_offsets":[0,1]}})",
           "a"),
       "names tensor 'x' twice"},
      // As far as offsets go, and further with the header before it.
      {file_with(R"({"x":{"dtype":"U8","shape":[0],)"
                 R"("data_offsets":[9223372036854775807,9223372036854775807]}})",
                 ""),
       "tensor 'x' begins at offset 9223372036854775"},
      {file_with(R"({"x":{"dtype":"U8","shape":[9223372036854775807],)"
                 R"("data_offsets":[0,9223372036854775807]}})",
                 ""),
       "is cut short: tensor 'x' takes offsets"},
      {file_with("{\"x\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}", ""),
       "lists in lists"},
      {file_with(R"({"x":{"dtype":"U8","shape":[[3]],"data_offsets":[0,3]}})", "abc"),
       "lists in lists"},
      {file_with(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                 R"("__metadata__":{"trireme.complex.x":"C64"}})",
                 "ab"),
       "tensor 'x' is said to be pairs of C64, and is U8 [2]"},
      {file_with(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("__metadata__":{"trireme.complex.x":"C64"}})",
                 "abcd"),
       "tensor 'x' is said to be pairs of C64, and is F32 [1]"},
      {file_with(R"({"__metadata__":[]})", ""), "__metadata__ is not a JSON object"},
      {file_with(R"({"__metadata__":{"a":1}})", ""), "metadata 'a' that is not a string"},
  };
  for (const auto& [bytes, expected] : cases) {
    write_file(path, bytes);
    EXPECT_THAT(message_of<CheckpointError>([&] { read_safetensors(path); }),
                AllOf(HasSubstr(path.string()), HasSubstr(expected)));
  }
}

TEST(Safetensors, SaysWhenThereIsNoFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<CheckpointError>([&] { read_safetensors(folder / "absent"); }),
              HasSubstr("cannot be opened"));
  EXPECT_THAT(message_of<CheckpointError>([&] { read_safetensors(folder.path()); }),
              HasSubstr("is a folder, expected a regular file"));
  ASSERT_EQ(::mkfifo((folder / "fifo.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(message_of<CheckpointError>([&] { read_safetensors(folder / "fifo.safetensors"); }),
              HasSubstr("is a FIFO, expected a regular file"));
}

}  // namespace
}  // namespace trireme::checkpoint
