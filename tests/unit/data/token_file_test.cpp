// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/token_file.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>
#include <trireme/data/data_loader.h>

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

namespace trireme::data {
namespace {

using test::message_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

// Little-endian numbers of the given width.
std::string bytes_of(const Numbers& tokens, int width) {
  std::string bytes;
  for (const std::int64_t token : tokens) {
    for (int byte = 0; byte < width; ++byte)
      bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(token) >> (8 * byte) & 0xFFU));
  }
  return bytes;
}

Numbers numbers_of(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), at::kLong);
  EXPECT_TRUE(tensor.is_contiguous());
  return {tensor.const_data_ptr<std::int64_t>(),
          tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

// A file in memory, all of it a hole until it is written to; of any size on any machine.
class HoleFile {
 public:
  explicit HoleFile(std::int64_t bytes) : file_(::memfd_create("tokens", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(file_.get(), bytes), 0);
  }

  int descriptor() const { return file_.get(); }
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  UniqueFd file_;
};

class TokenFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const Numbers& tokens, int width = 2) {
    write_file(path_, bytes_of(tokens, width));
    return path_;
  }

  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "train.bin";
};

TEST_F(TokenFile, GivesSequencesAndTheirTargets) {
  const auto set = token_file(write({10, 11, 12, 13, 14, 15, 16}), 3);
  EXPECT_THAT(set->columns(), ElementsAre("input", "target"));
  ASSERT_EQ(set->size(), 2);
  EXPECT_EQ(numbers_of(set->get(0)[0]), (Numbers{10, 11, 12}));
  EXPECT_EQ(numbers_of(set->get(0)[1]), (Numbers{11, 12, 13}));
  EXPECT_EQ(numbers_of(set->get(1)[0]), (Numbers{13, 14, 15}));
  EXPECT_EQ(numbers_of(set->get(1)[1]), (Numbers{14, 15, 16}));
  EXPECT_TRUE(set->stored().empty());
}

TEST_F(TokenFile, LeavesOutWhatDoesNotFillASequence) {
  EXPECT_EQ(token_file(write({0, 1, 2, 3, 4, 5}), 3)->size(), 1);
  EXPECT_EQ(token_file(write({0, 1, 2, 3}), 3)->size(), 1);
  EXPECT_EQ(token_file(write({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), 3)->size(), 3);
}

TEST_F(TokenFile, TakesAStrideOfItsOwn) {
  const auto every = token_file(write({5, 6, 7, 8, 9}), 2, at::kUInt16, 1);
  ASSERT_EQ(every->size(), 3);
  EXPECT_EQ(numbers_of(every->get(2)[1]), (Numbers{8, 9}));
  const auto sparse = token_file(path_, 1, at::kUInt16, 3);
  ASSERT_EQ(sparse->size(), 2);
  EXPECT_EQ(numbers_of(sparse->get(1)[0]), (Numbers{8}));
}

TEST_F(TokenFile, ReadsEachDtypeToItsEnds) {
  struct Case {
    at::ScalarType dtype;
    int width;
    Numbers tokens;
  };
  for (const auto& [dtype, width, tokens] :
       {Case{at::kUInt16, 2, {0, 65535, 50256}}, Case{at::kUInt32, 4, {0, 4294967295, 128255}},
        Case{at::kInt, 4, {0, 2147483647, -100}}}) {
    const auto sample = token_file(write(tokens, width), 2, dtype)->get(0);
    EXPECT_EQ(numbers_of(sample[0]), (Numbers{tokens[0], tokens[1]}));
    EXPECT_EQ(numbers_of(sample[1]), (Numbers{tokens[1], tokens[2]}));
  }
}

TEST_F(TokenFile, MapsAFileLargerThanTheMemory) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 39;
  const HoleFile file(kTokens * 2);
  ASSERT_EQ(::pwrite(file.descriptor(), bytes_of({7, 8}, 2).data(), 4, 0), 4);
  const auto set = token_file(file.path(), 1024, at::kUInt16, 1);
  EXPECT_EQ(set->size(), kTokens - 1024);
  EXPECT_EQ(set->get(0)[0][1].item<std::int64_t>(), 8);
  EXPECT_EQ(set->get(set->size() - 1)[1][1023].item<std::int64_t>(), 0);
}

TEST_F(TokenFile, FeedsAPipelineOfSeveralWorkers) {
  Numbers tokens;
  for (std::int64_t i = 0; i < 101; ++i) tokens.push_back(i);
  const auto stream = DataLoader(token_file(write(tokens), 10)).batch(5).prefetch(2, 2).open(0);
  const auto first = stream->next();
  EXPECT_EQ((*first)["input"].sizes(), (Numbers{5, 10}));
  const auto second = stream->next();
  EXPECT_EQ((*second)["target"][4][9].item<std::int64_t>(), 100);
  EXPECT_FALSE(stream->next());
}

TEST_F(TokenFile, NamesFileAndOffsetOfAPartOfAToken) {
  write_file(path_, bytes_of({1, 2, 3}, 4) + "xyz");
  EXPECT_THAT(
      message_of<DataError>([&] { token_file(path_, 1, at::kUInt32); }),
      AllOf(HasSubstr(path_.string() + ": offset 12: the last token has 3 bytes, expected 4"),
            HasSubstr("another dtype")));
}

TEST_F(TokenFile, RefusesAFileWithoutOneWholeSequence) {
  write({1, 2, 3});
  EXPECT_EQ(token_file(path_, 2)->size(), 1);
  EXPECT_THAT(message_of<DataError>([&] { token_file(path_, 3); }),
              HasSubstr(path_.string() + " has 3 tokens, too few for one sequence of 3"));
  write({});
  EXPECT_THAT(message_of<DataError>([&] { token_file(path_, 1); }), HasSubstr("has 0 tokens"));
}

TEST_F(TokenFile, NamesAFileThatIsMissingOrNoFile) {
  EXPECT_THAT(message_of<DataError>([&] { token_file(path_, 1); }),
              HasSubstr("no file " + path_.string()));
  EXPECT_THAT(message_of<DataError>([&] { token_file(folder_.path(), 1); }),
              HasSubstr("no file " + folder_.path().string()));
}

TEST_F(TokenFile, NamesAFileThatCannotBeMapped) {
  const HoleFile file(std::int64_t{1} << 52);  // more than there are addresses
  EXPECT_THAT(message_of<DataError>([&] { token_file(file.path(), 1); }),
              HasSubstr(file.path().string() + " cannot be mapped: "));
}

TEST_F(TokenFile, RefusesLengthsAndDtypesThatCannotBe) {
  write({1, 2, 3});
  EXPECT_THAT(message_of<UsageError>([&] { token_file(path_, 0); }),
              HasSubstr("the sequence length of a token file is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { token_file(path_, 1, at::kUInt16, 0); }),
              HasSubstr("the stride of a token file is 0"));
  EXPECT_THAT(message_of<UsageError>([&] { token_file(path_, 1, at::kFloat); }),
              HasSubstr("dtype Float"));
  EXPECT_THAT(message_of<UsageError>([&] { token_file(path_, 1)->get(2); }),
              HasSubstr("sample 2 of a data set of 2 samples"));
}

}  // namespace
}  // namespace trireme::data
