// SPDX-License-Identifier: Apache-2.0
// Indices whose checksum is right and that say what cannot be: by the hand of somebody who wants a
// reader to fall over.
#include <trireme/checkpoint/index.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/index_document.h>
#include <trireme/checkpoint/reader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
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
                       {}, comm::Group::self());
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
              HasSubstr("is damaged: more than 64 lists and objects lie in each other"));
}

TEST_F(IndexTest, RefusesNumbersThatAreNoIntegersOfTheirKind) {
  // As the index has them, by a hand that knows the checksum.
  const auto error_with = [&](const nlohmann::json::json_pointer& place,
                              const nlohmann::json& number) {
    write([](Index&) {});
    nlohmann::json document = nlohmann::json::parse(test::read_file(path_ / kIndexFile));
    document[place] = number;
    document.erase("crc32");
    const std::string text = document.dump();
    document["crc32"] = crc32_of(std::as_bytes(std::span(text)));
    test::write_file(path_ / kIndexFile, document.dump(1) + "\n");
    return test::message_of<CheckpointError>([&] { read_index(path_); });
  };
  using Place = nlohmann::json::json_pointer;
  for (const char* place :
       {"/order", "/written_at", "/block_bytes", "/epoch", "/step",
        "/files/model.safetensors/bytes", "/files/model.safetensors/header_bytes",
        "/files/model.safetensors/header_crc32", "/sections/model/t/shape/0",
        "/sections/model/t/pieces/0/offset", "/sections/model/t/pieces/0/range/1",
        "/sections/model/t/pieces/0/crc32/0"}) {
    for (const nlohmann::json& number :
         {nlohmann::json(1e300), nlohmann::json(0.5), nlohmann::json(std::uint64_t{1} << 63U),
          nlohmann::json("7")}) {
      EXPECT_THAT(error_with(Place(place), number), HasSubstr("is not an integer of")) << place;
    }
  }
}

TEST_F(IndexTest, ReadsFilesOfItsOwnFolderAlone) {
  for (const std::string& name : {std::string("."), std::string(".."), std::string("a\0b", 3)}) {
    EXPECT_THAT(error([&](Index& index) {
                  index.files[name] = file(index);
                  tensor(index).pieces.at(0).file = name;
                }),
                HasSubstr("lists the file '"));
  }
  for (const char* name : {"index.json", "model.safetensors", "order"}) {
    write([](Index&) {});
    const std::string before = test::read_file(path_ / name);
    std::filesystem::remove(path_ / name);
    ASSERT_EQ(::mkfifo((path_ / name).c_str(), 0600), 0);
    EXPECT_THAT(test::message_of<CheckpointError>([&] { Reader(path_).read("model", "t"); }),
                HasSubstr((path_ / name).string() + " is a FIFO, expected a regular file"));
    std::filesystem::remove(path_ / name);
    test::write_file(path_ / name, before);
  }
}

TEST_F(IndexTest, TakesNoMemoryForWhatNoFileHas) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 50;
  const auto claim = [&](Index& index) {
    tensor(index).shape = {kHuge};
    tensor(index).dtype = at::kByte;
    tensor(index).pieces.at(0).slice = whole(tensor(index).shape);
    tensor(index).pieces.at(0).checksums = {1};
    index.block_bytes = kHuge;
    file(index).bytes = file(index).header_bytes + kHuge;
  };
  EXPECT_THAT(error(claim), HasSubstr("model.safetensors is cut short"));
  EXPECT_THAT(error([](Index& index) { file(index).header_bytes = file(index).bytes = kHuge; }),
              HasSubstr("are its header"));
}

// Sparse, so that no disk is needed either.
TEST_F(IndexTest, VerifiesATensorInLittleMemory) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 28;
  const std::int64_t header = good_.files.begin()->second.header_bytes;
  write([&](Index& index) {
    tensor(index).shape = {kLarge};
    tensor(index).dtype = at::kByte;
    Piece& piece = tensor(index).pieces.at(0);
    piece.slice = whole(tensor(index).shape);
    piece.checksums = {crc32_of(std::vector<std::byte>(kLarge))};
    index.block_bytes = kLarge;
    file(index).bytes = header + kLarge;
  });
  const auto model = path_ / "model.safetensors";
  std::filesystem::resize_file(model, static_cast<std::uintmax_t>(header));
  std::filesystem::resize_file(model, static_cast<std::uintmax_t>(header + kLarge));
  // A child that may have no more than a little beside what it has now.
  const pid_t child = ::fork();
  if (child == 0) {
    at::set_num_threads(1);
    std::ifstream pages("/proc/self/statm");
    std::uint64_t in_use = 0;
    pages >> in_use;
    const rlim_t most = in_use * static_cast<rlim_t>(::getpagesize()) + (rlim_t{64} << 20U);
    const rlimit limit{.rlim_cur = most, .rlim_max = most};
    ::setrlimit(RLIMIT_AS, &limit);
    ::_exit(find_damage(path_).empty() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(error([](Index&) {}), HasSubstr("is too long"));
}

IndexedTensor tensor_of_boxes(std::int64_t rows, std::int64_t columns) {
  IndexedTensor tensor{.dtype = at::kByte, .shape = {rows, columns}};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      tensor.pieces.push_back({.file = {}, .slice = Box{.begin = {row, column}, .size = {1, 1}}});
    }
  }
  return tensor;
}

// So many that to look at each pair takes minutes.
TEST(IndexCover, TakesBoxesByTheHundredsOfThousands) {
  IndexedTensor tensor = tensor_of_boxes(320, 626);
  check_cover("t", tensor, "the checkpoint");
  const auto error = [&] {
    return test::message_of<CheckpointError>([&] { check_cover("t", tensor, "the checkpoint"); });
  };
  tensor.pieces.back().slice = Box{.begin = {300, 0}, .size = {2, 1}};
  EXPECT_THAT(error(), HasSubstr("some of its boxes overlap"));
  tensor.pieces.back().slice = Box{.begin = {300, 0}, .size = {0, 1}};
  EXPECT_THAT(error(), HasSubstr("1 of 200320 elements are missing"));
  for (Piece& piece : tensor.pieces) std::get<Box>(piece.slice).size = {1, 1};
  for (std::size_t i = 0; i + 1 < tensor.pieces.size(); i += 2) {
    std::get<Box>(tensor.pieces[i].slice).size = {1, 2};
  }
  EXPECT_THAT(error(), HasSubstr("overlap"));
}

TEST(IndexCover, FindsAHoleBesideAnOverlapOfTheSameSize) {
  IndexedTensor tensor{.dtype = at::kByte, .shape = {4, 4}};
  const auto put = [&](std::vector<Box> boxes) {
    tensor.pieces.clear();
    for (Box& box : boxes) tensor.pieces.push_back({.file = {}, .slice = std::move(box)});
  };
  // A windmill, which no straight cut divides.
  put({{{0, 0}, {1, 3}}, {{0, 3}, {3, 1}}, {{3, 1}, {1, 3}}, {{1, 0}, {3, 1}}, {{1, 1}, {2, 2}}});
  check_cover("t", tensor, "the checkpoint");
  put({{{0, 0}, {1, 3}}, {{0, 2}, {3, 1}}, {{3, 1}, {1, 3}}, {{1, 0}, {3, 1}}, {{1, 1}, {2, 2}}});
  EXPECT_THAT(
      test::message_of<CheckpointError>([&] { check_cover("t", tensor, "the checkpoint"); }),
      HasSubstr("the boxes [0:1, 0:3] and [0:3, 2:3] overlap"));
}

}  // namespace
}  // namespace trireme::checkpoint
