// SPDX-License-Identifier: Apache-2.0
// Indices whose checksum is right and that say what cannot be: by the hand of somebody who wants a
// reader to fall over.
#include <trireme/checkpoint/index.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/reader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace trireme::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

class IndexTest : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  std::filesystem::path path_;
  Index good_;

  void SetUp() override {
    path_ = save_parts({.folder = folder_.path()}, {replicated("model", "t", torch::ones({2, 3}))},
                       {}, comm::Group());
    good_ = read_index(path_);
  }

  void write(const std::function<void(Index&)>& change) {
    Index index = good_;
    change(index);
    test::write_file(path_ / kIndexFile, write_index(index));
  }

  // What reading says of a changed index.
  std::string error(const std::function<void(Index&)>& change) {
    write(change);
    return test::message_of<CheckpointError>([&] { Reader(path_).read("model", "t"); });
  }

  static IndexedTensor& tensor(Index& index) { return index.sections.at("model").at("t"); }
  static IndexedFile& file(Index& index) { return index.files.at("model.safetensors"); }
};

TEST_F(IndexTest, RefusesShapesThatNoTensorHas) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{-2, -3}, {kMost, 2}, {0, kMost, 2}, {kMost / 2}}) {
    EXPECT_THAT(error([&](Index& index) { tensor(index).shape = shape; }),
                AllOf(HasSubstr(path_.string()), HasSubstr("not all of tensor 't'"),
                      HasSubstr("no tensor has this shape")));
  }
}

TEST_F(IndexTest, RefusesSlicesThatTheTensorHasNot) {
  for (const Slice& slice :
       {Slice(FlatRange{.begin = -1, .end = 5}), Slice(FlatRange{.begin = 4, .end = 3}),
        Slice(FlatRange{.begin = 0, .end = kMost}),
        Slice(FlatRange{.begin = 0, .end = 6, .order = {0, 0}}),
        Slice(FlatRange{.begin = 0, .end = 6, .order = {1}}),
        Slice(Box{.begin = {0, 0, 0}, .size = {2, 3}}), Slice(Box{.begin = {0}, .size = {2, 3}}),
        Slice(Box{.begin = {0, 0}, .size = {2, kMost}}),
        Slice(Box{.begin = {kMost, 0}, .size = {2, 3}}),
        Slice(BoxRange{.box = {.begin = {0}, .size = {2, 3}}, .range = {.begin = 0, .end = 6}}),
        Slice(BoxRange{.box = {.begin = {0, 0}, .size = {2, 2}}, .range = {.begin = 0, .end = 6}}),
        Slice(BoxRange{.box = {.begin = {0, 0}, .size = {2, kMost}},
                       .range = {.begin = 0, .end = kMost}})}) {
    EXPECT_THAT(error([&](Index& index) { tensor(index).pieces.at(0).slice = slice; }),
                HasSubstr("is not inside it"));
  }
}

TEST_F(IndexTest, RefusesPlacesOutsideOfFiles) {
  for (const std::int64_t offset : {std::int64_t{-8}, std::int64_t{0}, kMost}) {
    EXPECT_THAT(error([&](Index& index) { tensor(index).pieces.at(0).offset = offset; }),
                HasSubstr("places tensor 't' [0, 6) where it cannot be"));
  }
  EXPECT_THAT(error([](Index& index) { tensor(index).pieces.at(0).file = "other"; }),
              HasSubstr("where it cannot be"));
  EXPECT_THAT(error([](Index& index) { tensor(index).pieces.at(0).checksums.clear(); }),
              HasSubstr("where it cannot be"));
  EXPECT_THAT(error([](Index& index) { file(index).header_bytes = -1; }),
              HasSubstr("of which -1 are its header"));
  EXPECT_THAT(error([](Index& index) { file(index).bytes = 7; }), HasSubstr("with 7 bytes"));
  EXPECT_THAT(error([](Index& index) { index.block_bytes = 0; }), HasSubstr("blocks of 0 bytes"));
}

TEST_F(IndexTest, ReadsFilesBesideItAlone) {
  test::write_file(folder_ / "elsewhere", test::read_file(path_ / "model.safetensors"));
  for (const std::string& name : {std::string("../elsewhere"), (folder_ / "elsewhere").string()}) {
    EXPECT_THAT(error([&](Index& index) {
                  index.files[name] = file(index);
                  tensor(index).pieces.at(0).file = name;
                }),
                HasSubstr("lists the file '" + name + "'"));
  }
}

TEST_F(IndexTest, KeepsSlicesOfEveryKind) {
  for (const Slice& slice :
       {Slice(FlatRange{.begin = 0, .end = 6}),
        Slice(FlatRange{.begin = 0, .end = 6, .order = {1, 0}}),
        Slice(Box{.begin = {0, 0}, .size = {2, 3}}),
        Slice(BoxRange{.box = {.begin = {0, 0}, .size = {2, 3}}, .range = {.begin = 0, .end = 6}}),
        Slice(BoxRange{.box = {.begin = {0, 0}, .size = {2, 3}},
                       .range = {.begin = 0, .end = 6, .order = {1, 0}}})}) {
    write([&](Index& index) { tensor(index).pieces.at(0).slice = slice; });
    EXPECT_EQ(read_index(path_).sections.at("model").at("t").pieces.at(0).slice, slice)
        << describe(slice);
  }
}

TEST_F(IndexTest, TakesBlocksOfAnySize) {
  write([](Index& index) { index.block_bytes = kMost; });
  EXPECT_TRUE(torch::equal(Reader(path_).read("model", "t"), torch::ones({2, 3})));
}

TEST_F(IndexTest, IsNotFollowedIntoDepthsWithoutEnd) {
  constexpr std::size_t kDepth = 1'000'000;
  test::write_file(path_ / kIndexFile, "{\"format\": 2, \"x\": " + std::string(kDepth, '[') +
                                           std::string(kDepth, ']') + "}");
  EXPECT_THAT(test::message_of<CheckpointError>([&] { read_index(path_); }),
              HasSubstr("is damaged: its checksum does not match"));
}

}  // namespace
}  // namespace trireme::checkpoint
