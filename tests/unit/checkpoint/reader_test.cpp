// SPDX-License-Identifier: Apache-2.0
// Tensors that were saved in parts, read whole and in other parts.
#include <trireme/checkpoint/reader.h>

#include "tests/unit/checkpoint/failing_files.h"
#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/crc32.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <filesystem>
#include <iterator>
#include <span>
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

using Sizes = std::vector<std::int64_t>;

class ReaderTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  at::Tensor tensor_ = torch::arange(4 * 6 * 5, torch::kInt).view({4, 6, 5});

  std::filesystem::path save_all(const std::vector<TensorPart>& parts) {
    return save_parts({.folder = folder_.path(), .prefix = "parts"}, parts, {},
                      comm::Group::self());
  }

  static at::Tensor ordered(const at::Tensor& tensor, const Sizes& order) {
    return order.empty() ? tensor : tensor.permute(order);
  }

  TensorPart range(std::int64_t begin, std::int64_t end, const Sizes& order = {}) const {
    return {.section = "model",
            .name = "t",
            .shape = tensor_.sizes().vec(),
            .slice = FlatRange{.begin = begin, .end = end, .order = order},
            .local = ordered(tensor_, order).contiguous().flatten().slice(0, begin, end)};
  }

  at::Tensor cut(const Box& box) const {
    at::Tensor part = tensor_;
    for (std::size_t d = 0; d < box.begin.size(); ++d) {
      part = part.narrow(static_cast<std::int64_t>(d), box.begin[d], box.size[d]);
    }
    return part;
  }

  TensorPart box(const Sizes& begin, const Sizes& size) const {
    const Box slice{.begin = begin, .size = size};
    return {.section = "model",
            .name = "t",
            .shape = tensor_.sizes().vec(),
            .slice = slice,
            .local = cut(slice)};
  }

  // Elements of a box in an order.
  TensorPart range_of_box(const Box& box, std::int64_t begin, std::int64_t end,
                          const Sizes& order = {}) const {
    return {.section = "model",
            .name = "t",
            .shape = tensor_.sizes().vec(),
            .slice = BoxRange{.box = box, .range = {.begin = begin, .end = end, .order = order}},
            .local = ordered(cut(box), order).contiguous().flatten().slice(0, begin, end)};
  }

  static inline const std::vector<std::pair<std::int64_t, std::int64_t>> kRanges = {
      {0, 120}, {0, 1}, {17, 90}, {119, 120}, {5, 5}};

  // Whole, and in many slices of both kinds.
  void expect_all(const std::filesystem::path& path) {
    Reader reader(path);
    EXPECT_TRUE(torch::equal(reader.read("model", "t"), tensor_));
    for (const Sizes& order : {Sizes{}, Sizes{2, 0, 1}, Sizes{0, 2, 1}}) {
      const at::Tensor flat = ordered(tensor_, order).contiguous().flatten();
      for (const auto& [begin, end] : kRanges) {
        const at::Tensor part =
            reader.read("model", "t", FlatRange{.begin = begin, .end = end, .order = order});
        EXPECT_TRUE(torch::equal(part.flatten(), flat.slice(0, begin, end))) << begin << " " << end;
      }
    }
    for (const Box& slice : {Box{{0, 0, 0}, {4, 6, 5}}, Box{{1, 2, 3}, {2, 3, 2}},
                             Box{{3, 5, 4}, {1, 1, 1}}, Box{{0, 0, 0}, {0, 6, 5}}}) {
      EXPECT_TRUE(torch::equal(reader.read("model", "t", slice), cut(slice)));
      for (const Sizes& order : {Sizes{}, Sizes{2, 0, 1}}) {
        const std::int64_t end = elements(slice.size) / 2;
        const TensorPart part = range_of_box(slice, end / 3, end, order);
        EXPECT_TRUE(torch::equal(reader.read("model", "t", part.slice), part.local));
      }
    }
    EXPECT_TRUE(find_damage(path).empty());
  }
};

TEST_F(ReaderTest, ReadsAnySliceOfRanges) {
  expect_all(save_all({range(0, 120)}));
  expect_all(save_all({range(40, 41), range(0, 40), range(41, 120)}));
}

TEST_F(ReaderTest, ReadsAnySliceOfRangesInTheOrderOfMemory) {
  const Sizes order = memory_order({4, 6, 5}, {5, 20, 1});
  EXPECT_EQ(order, (Sizes{1, 0, 2}));
  expect_all(save_all({range(0, 7, order), range(7, 120, order)}));
  expect_all(save_all({range(0, 100, {2, 0, 1}), range(100, 120, {2, 0, 1})}));
}

TEST_F(ReaderTest, ReadsAnySliceOfBoxes) {
  expect_all(save_all({box({0, 0, 0}, {4, 6, 5})}));
  expect_all(save_all({box({0, 0, 0}, {4, 2, 5}), box({0, 2, 0}, {1, 4, 5}),
                       box({1, 2, 0}, {3, 4, 3}), box({1, 2, 3}, {3, 4, 2})}));
}

TEST_F(ReaderTest, ReadsAnySliceOfRangesOfBoxes) {
  const Box left{{0, 0, 0}, {4, 6, 2}};
  const Box right{{0, 0, 2}, {4, 6, 3}};
  expect_all(save_all({range_of_box(left, 0, 7), range_of_box(left, 7, 48),
                       range_of_box(right, 0, 72, {1, 2, 0})}));
  expect_all(save_all({range_of_box(left, 20, 48, {2, 1, 0}), range_of_box(left, 0, 20, {2, 1, 0}),
                       box({0, 0, 2}, {4, 6, 3})}));
  const Box upper{{0, 0, 0}, {1, 6, 5}};
  const Box lower{{1, 0, 0}, {3, 6, 5}};
  expect_all(save_all({range_of_box(upper, 0, 11), range_of_box(upper, 11, 30),
                       range_of_box(lower, 0, 89), range_of_box(lower, 89, 90)}));
}

TEST_F(ReaderTest, KnowsTheOrderOfMemory) {
  EXPECT_EQ(memory_order({2, 3}, {3, 1}), Sizes());
  EXPECT_EQ(memory_order({2, 3}, {1, 2}), (Sizes{1, 0}));
  EXPECT_EQ(memory_order({2, 3, 4, 5}, {60, 1, 15, 3}), (Sizes{0, 2, 3, 1}));
  EXPECT_EQ(memory_order({2, 1, 4}, {4, 999, 1}), Sizes()) << "one element lies anywhere";
  EXPECT_EQ(memory_order({}, {}), Sizes());
}

TEST_F(ReaderTest, ReadsTensorsWithoutDimensionsAndWithoutElements) {
  const auto path = save_all({replicated("model", "scalar", torch::tensor(3.5)),
                              replicated("model", "empty", torch::zeros({0, 3}))});
  Reader reader(path);
  EXPECT_EQ(reader.read("model", "scalar").item<float>(), 3.5);
  EXPECT_EQ(reader.read("model", "scalar").dim(), 0);
  EXPECT_EQ(reader.read("model", "empty").sizes(), (at::IntArrayRef{0, 3}));
  EXPECT_EQ(reader.read("model", "empty", FlatRange{}).numel(), 0);
  EXPECT_THAT(message_of<UsageError>([&] { reader.read("model", "other"); }),
              HasSubstr("has no tensor 'other'"));
}

TEST_F(ReaderTest, RefusesPartsThatDoNotMakeUpTheTensor) {
  const auto error = [&](const std::vector<TensorPart>& parts) {
    return message_of<CheckpointError>([&] { save_all(parts); });
  };
  EXPECT_THAT(error({range(0, 40), range(41, 120)}),
              AllOf(HasSubstr("not all of tensor 't' [4, 6, 5]"),
                    HasSubstr("elements 40 to 41 are missing")));
  EXPECT_THAT(error({range(0, 41), range(40, 120)}), HasSubstr("40 to 41 are there twice"));
  EXPECT_THAT(error({range(0, 100)}), HasSubstr("20 of 120 elements are missing"));
  EXPECT_THAT(error({range(0, 60), range(60, 120, {2, 1, 0})}),
              HasSubstr("the parts count it through differently"));
  EXPECT_THAT(error({range(0, 60), box({2, 0, 0}, {2, 6, 5})}),
              HasSubstr("some parts are ranges, others boxes"));
  EXPECT_THAT(error({box({0, 0, 0}, {3, 6, 5}), box({2, 0, 0}, {2, 6, 5})}), HasSubstr("overlap"));
  EXPECT_THAT(error({box({0, 0, 0}, {4, 5, 5})}), HasSubstr("20 of 120 elements are missing"));
  const Box left{{0, 0, 0}, {4, 6, 2}};
  const Box right{{0, 0, 2}, {4, 6, 3}};
  EXPECT_THAT(
      error({range_of_box(left, 0, 20), range_of_box(left, 21, 48), box({0, 0, 2}, {4, 6, 3})}),
      HasSubstr("of the box [0:4, 0:6, 0:2] elements 20 to 21 are missing"));
  EXPECT_THAT(error({range_of_box(left, 0, 48), range_of_box(right, 0, 60)}),
              HasSubstr("12 of 120 elements are missing"));
  EXPECT_THAT(error({range_of_box(left, 0, 20), range_of_box(left, 20, 48, {2, 0, 1}),
                     range_of_box(right, 0, 72)}),
              HasSubstr("of the box [0:4, 0:6, 0:2] the parts count it through differently"));
  EXPECT_THAT(error({range_of_box(left, 0, 48), range_of_box({{0, 0, 1}, {4, 6, 4}}, 0, 96)}),
              HasSubstr("the boxes [0:4, 0:6, 0:2] and [0:4, 0:6, 1:5] overlap"));
  EXPECT_THAT(error({range(0, 48), range_of_box(right, 0, 72)}),
              HasSubstr("some parts are ranges, others boxes"));
  TensorPart beyond = range_of_box(left, 0, 48);
  beyond.slice = BoxRange{.box = left, .range = {.begin = 1, .end = 49}};
  EXPECT_THAT(error({beyond}),
              HasSubstr("the range of a box [0:4, 0:6, 0:2][1, 49) is not inside it"));
  TensorPart outside = box({0, 0, 0}, {4, 6, 5});
  outside.slice = Box{.begin = {1, 0, 0}, .size = {4, 6, 5}};
  EXPECT_THAT(error({outside}), HasSubstr("the box [1:5, 0:6, 0:5] is not inside it"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));

  TensorPart wrong = range(0, 120);
  wrong.local = tensor_.flatten().slice(0, 0, 119);
  EXPECT_THAT(message_of<UsageError>([&] { save_all({wrong}); }),
              HasSubstr("has 120 elements, and its tensor [119]"));
  wrong = range(0, 120);
  wrong.section = "../model";
  EXPECT_THAT(message_of<UsageError>([&] { save_all({wrong}); }), HasSubstr("'../model'"));
  EXPECT_THAT(message_of<UsageError>([&] { save_all({range(0, 120), range(0, 120)}); }),
              HasSubstr("is to be saved twice"));
}

TEST_F(ReaderTest, RefusesSlicesThatATensorHasNot) {
  Reader reader(save_all({range(0, 120)}));
  for (const Slice& slice :
       {Slice(FlatRange{.begin = -1, .end = 3}), Slice(FlatRange{.begin = 100, .end = 121}),
        Slice(FlatRange{.begin = 7, .end = 6}),
        Slice(FlatRange{.begin = 0, .end = 120, .order = {2, 0}}),
        Slice(BoxRange{.box = {.begin = {1, 0, 0}, .size = {4, 6, 5}}, .range = {}}),
        Slice(BoxRange{.box = {.begin = {1, 0, 0}, .size = {3, 6, 5}},
                       .range = {.begin = 0, .end = 91}}),
        Slice(Box{.begin = {0, 0}, .size = {4, 6}}),
        Slice(Box{.begin = {1, 0, 0}, .size = {4, 6, 5}})}) {
    EXPECT_THAT(message_of<UsageError>([&] { reader.read("model", "t", slice); }),
                HasSubstr("asked for " + describe(slice) + " of tensor 't' whose shape is [4, 6"));
  }
}

TEST_F(ReaderTest, KeepsNoMoreFilesOpenThanAProcessMayHave) {
  constexpr int kFiles = 600;
  std::vector<TensorPart> parts;
  for (int i = 0; i < kFiles; ++i) {
    const std::string section = {static_cast<char>('a' + i / 26), static_cast<char>('a' + i % 26)};
    parts.push_back(replicated(section, "t", torch::ones({1}) * i));
  }
  test::FailingFiles files;
  Reader reader(
      save_parts({.folder = folder_.path(), .files = &files}, parts, {}, comm::Group::self()));
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kFiles; ++i) {
      const std::string& section = parts[static_cast<std::size_t>(i)].section;
      ASSERT_EQ(reader.read(section, "t").item<float>(), static_cast<float>(i));
    }
  }
  EXPECT_LE(open_files() - before, 512);
}

TEST_F(ReaderTest, ReadsTheBlocksOfASliceAlone) {
  const at::Tensor large = torch::randn({5, 1 << 18});  // 5 MiB, blocks of 1 MiB
  const auto path = save_all({replicated("model", "large", large)});
  Reader reader(path);
  const std::int64_t begin = (1 << 18) + 5;
  EXPECT_TRUE(
      torch::equal(reader.read("model", "large", FlatRange{.begin = begin, .end = begin + 10}),
                   large.flatten().slice(0, begin, begin + 10)));
  EXPECT_EQ(reader.bytes_read(), 1 << 20);

  // Damage elsewhere does not matter to the slice; a reader of all finds it.
  const auto file = path / "model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  write_file(file, bytes);
  Reader again(path);
  again.read("model", "large", FlatRange{.begin = begin, .end = begin + 10});
  EXPECT_THAT(
      message_of<CheckpointError>([&] { again.read("model", "large"); }),
      AllOf(HasSubstr("model.safetensors is damaged: the bytes of tensor 'large' at offsets " +
                      std::to_string(bytes.size() - (1 << 20)) + " to " +
                      std::to_string(bytes.size())),
            HasSubstr("CRC-32")));
  EXPECT_EQ(find_damage(path).size(), 1U);
  std::filesystem::remove(file);
  EXPECT_THAT(find_damage(path), ::testing::ElementsAre(HasSubstr("No such file")));
}

TEST_F(ReaderTest, ReadsTheRowsOfABoxAloneWhateverItWasSavedAs) {
  const at::Tensor large = torch::randn({1 << 10, 1 << 10});  // 4 MiB, 256 rows a block
  const auto check = [&](Reader& reader, const Box& box, std::int64_t bytes) {
    const at::Tensor expected =
        large.narrow(0, box.begin[0], box.size[0]).narrow(1, box.begin[1], box.size[1]);
    EXPECT_TRUE(torch::equal(reader.read("model", "large", box), expected));
    EXPECT_EQ(reader.bytes_read(), bytes);
  };
  const auto path = save_all({replicated("model", "large", large)});
  Reader rows(path);
  check(rows, {.begin = {256, 0}, .size = {256, 1 << 10}}, 1 << 20);
  Reader columns_of_rows(path);
  check(columns_of_rows, {.begin = {300, 7}, .size = {300, 5}}, 2 << 20);
  const auto half = [&](std::int64_t begin) {
    return TensorPart{.section = "model",
                      .name = "large",
                      .shape = large.sizes().vec(),
                      .slice = Box{.begin = {0, begin}, .size = {1 << 10, 512}},
                      .local = large.narrow(1, begin, 512)};
  };
  Reader halves(save_all({half(0), half(512)}));
  check(halves, {.begin = {600, 500}, .size = {1, 10}}, 1 << 20);
  Reader left(save_all({half(0), half(512)}));
  check(left, {.begin = {0, 512}, .size = {1 << 10, 512}}, 2 << 20);
}

TEST_F(ReaderTest, VerifiesBlocksThatAreTakenApart) {
  const at::Tensor large = torch::randn({1 << 10, 512});
  const auto path = save_all({replicated("model", "large", large)});
  const auto file = path / "model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  write_file(file, bytes);
  Reader reader(path);
  const Box upper{.begin = {0, 3}, .size = {512, 2}};
  EXPECT_TRUE(
      torch::equal(reader.read("model", "large", upper), large.narrow(0, 0, 512).narrow(1, 3, 2)));
  const auto damage = HasSubstr("is damaged: the bytes of tensor 'large' at offsets ");
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { reader.read("model", "large", Box{.begin = {700, 3}, .size = {1, 2}}); }),
              damage);
  // One checksum over a whole tensor.
  Reader alone(file);
  EXPECT_THAT(message_of<CheckpointError>([&] { alone.read("model", "large", upper); }), damage);
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { alone.read("model", "large", FlatRange{.begin = 512, .end = 1024}); }),
              damage);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  write_file(file, bytes);
  EXPECT_TRUE(
      torch::equal(alone.read("model", "large", FlatRange{.begin = 512, .end = 1024}), large[1]));
}

TEST_F(ReaderTest, ReadsNoMoreThanItNeedsOfFilesWithoutChecksums) {
  const at::Tensor tensor = torch::arange(6, torch::kInt).view({2, 3});
  const std::string header =
      R"({"t":{"dtype":"I32","shape":[2,3],"data_offsets":[0,24]}})" + std::string(7, ' ');
  const std::uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  text += header;
  text.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  Reader reader(folder_.write("other.safetensors", text));
  EXPECT_TRUE(torch::equal(reader.read("model", "t", Box{.begin = {0, 1}, .size = {2, 1}}),
                           tensor.narrow(1, 1, 1)));
  EXPECT_EQ(reader.bytes_read(), 16) << "from the one wanted element to the other";
}

TEST_F(ReaderTest, ReadsBlocksThatEndInsideOfElements) {
  const auto path = save_all({range(0, 120)});
  Index index = read_index(path);
  index.block_bytes = 479;
  IndexedTensor& saved = index.sections.at("model").at("t");
  const std::string bytes = read_file(path / "model.safetensors");
  const auto crc = [&](std::size_t begin, std::size_t end) {
    const auto first = static_cast<std::size_t>(saved.pieces[0].offset);
    return crc32_of(std::as_bytes(std::span(bytes).subspan(first + begin, end - begin)));
  };
  saved.pieces[0].checksums = {crc(0, 479), crc(479, 480)};
  write_file(path / kIndexFile, write_index(index));
  expect_all(path);
}

}  // namespace
}  // namespace trireme::checkpoint
