// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/tokens.h>

#include <trireme/base/error.h>
#include <trireme/data/text/byte_tokenizer.h>
#include <trireme/data/token_file.h>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::data {
namespace {

using test::message_of;
using test::read_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

Numbers numbers_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(),
          tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

TEST(EncodeToTensor, GivesTheTokens) {
  const ByteTokenizer tokenizer({"<end>"});
  const at::Tensor tokens = encode_to_tensor(tokenizer, "ab<end>");
  EXPECT_EQ(tokens.scalar_type(), at::kLong);
  EXPECT_THAT(numbers_of(tokens), ElementsAre('a', 'b', 256));
  EXPECT_EQ(decode_tensor(tokenizer, tokens), "ab<end>");
  EXPECT_EQ(decode_tensor(tokenizer, tokens.view({3, 1}).expand({3, 2}).t()), "ab<end>ab<end>");
  EXPECT_EQ(encode_to_tensor(tokenizer, "").numel(), 0);
}

TEST(DecodeTensor, RefusesOtherTensors) {
  const ByteTokenizer tokenizer;
  EXPECT_THAT(message_of<UsageError>([&] { decode_tensor(tokenizer, at::zeros({2}, at::kInt)); }),
              HasSubstr("not an int64 tensor on the CPU"));
  EXPECT_THAT(message_of<UsageError>([&] { decode_tensor(tokenizer, {}); }),
              HasSubstr("not an int64 tensor on the CPU"));
}

class TokenWriting : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "train.bin";
};

TEST_F(TokenWriting, WritesWhatTokenFileReads) {
  for (const auto dtype : {at::kUInt16, at::kUInt32, at::kInt}) {
    Numbers tokens;
    for (std::int64_t i = 0; i < 700000; ++i) tokens.push_back(i * 7919 % 65536);
    write_tokens(path_, tokens, dtype);
    const auto sample = token_file(path_, std::ssize(tokens) - 1, dtype)->get(0);
    EXPECT_EQ(numbers_of(sample[0]), Numbers(tokens.begin(), tokens.end() - 1));
    EXPECT_EQ(numbers_of(sample[1]), Numbers(tokens.begin() + 1, tokens.end()));
  }
}

TEST_F(TokenWriting, TakesPiecesAndPublishesTheWhole) {
  write_tokens(path_, Numbers{9});
  {
    TokenWriter unfinished(path_);
    unfinished.add(Numbers{1, 2});
  }
  EXPECT_EQ(read_file(path_), std::string("\x09\x00", 2));
  TokenWriter writer(path_);
  writer.add(Numbers{1, 2});
  writer.add({});
  writer.add(Numbers{513});
  EXPECT_EQ(read_file(path_), std::string("\x09\x00", 2));
  EXPECT_EQ(writer.finish(), 3);
  EXPECT_EQ(read_file(path_), std::string("\x01\x00\x02\x00\x01\x02", 6));
}

TEST_F(TokenWriting, KeepsTheEndsOfEachDtype) {
  write_tokens(path_, Numbers{0, 65535});
  EXPECT_EQ(read_file(path_), std::string("\x00\x00\xFF\xFF", 4));
  write_tokens(path_, Numbers{4294967295}, at::kUInt32);
  EXPECT_EQ(read_file(path_), "\xFF\xFF\xFF\xFF");
  write_tokens(path_, Numbers{-2147483648, -1}, at::kInt);
  EXPECT_EQ(read_file(path_), std::string("\x00\x00\x00\x80\xFF\xFF\xFF\xFF", 8));
}

TEST_F(TokenWriting, NamesTokensThatDoNotFit) {
  TokenWriter writer(path_);
  writer.add(Numbers{1, 2});
  EXPECT_THAT(message_of<UsageError>([&] { writer.add(Numbers{3, 65536}); }),
              HasSubstr("token 65536 at place 3 of a file of UInt16, which holds 0 to 65535"));
  EXPECT_THAT(message_of<UsageError>([&] { writer.add(Numbers{-1}); }), HasSubstr("token -1"));
  EXPECT_EQ(writer.finish(), 2);
  EXPECT_THAT(
      message_of<UsageError>([&] { write_tokens(path_, Numbers{4294967296}, at::kUInt32); }),
      HasSubstr("check what made the tokens"));
  EXPECT_THAT(message_of<UsageError>([&] { write_tokens(path_, {}, at::kLong); }),
              HasSubstr("a token file of dtype Long"));
}

TEST_F(TokenWriting, NamesAPlaceThatCannotBeWritten) {
  EXPECT_THAT(message_of<CheckpointError>([&] { TokenWriter(folder_ / "nowhere/train.bin"); }),
              HasSubstr("nowhere/train.bin"));
}

}  // namespace
}  // namespace trireme::data
