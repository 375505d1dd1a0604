// SPDX-License-Identifier: Apache-2.0
// Framing and messages byte by byte; tests/parity/train reads the same with TensorBoard itself.
#include <trireme/report/tensorboard_file.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <bit>
#include <cstring>
#include <vector>

namespace trireme::report {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

TEST(TensorBoardFile, MasksTheCrcOfCastagnoli) {
  // The check value of CRC-32C, by its definition: 0xE3069283 for these digits.
  EXPECT_EQ(masked_crc32c("123456789"), std::rotr(0xE3069283U, 15) + 0xA282EAD8U);
  EXPECT_EQ(masked_crc32c(""), 0xA282EAD8U);
}

template <typename Number>
Number number_at(const std::string& bytes, std::size_t place) {
  Number value{};
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

// The data of every record, whose lengths and checksums must be right.
std::vector<std::string> records_of(const std::string& bytes) {
  std::vector<std::string> records;
  for (std::size_t place = 0; place < bytes.size();) {
    const auto length = number_at<std::uint64_t>(bytes, place);
    EXPECT_EQ(number_at<std::uint32_t>(bytes, place + 8), masked_crc32c(bytes.substr(place, 8)));
    records.push_back(bytes.substr(place + 12, length));
    EXPECT_EQ(number_at<std::uint32_t>(bytes, place + 12 + length), masked_crc32c(records.back()));
    place += 16 + length;
  }
  return records;
}

TEST(TensorBoardFile, BeginsWithItsVersionAndHasAnEventForEachRecord) {
  const test::TemporaryFolder folder;
  TensorBoardFile file(folder.path(), 1700000000.25);
  EXPECT_THAT(file.path().filename().string(),
              testing::StartsWith("events.out.tfevents.1700000000."));
  file.write(EvaluationRecord{.moment = {.time = 2, .epoch = 1, .global_step = 300}, .loss = 0.5});
  const auto records = records_of(test::read_file(file.path()));
  ASSERT_THAT(records, SizeIs(2));
  std::string first =
      "\x09........\x1A\x0D"
      "brain.Event:2";
  const auto time = std::bit_cast<std::uint64_t>(1700000000.25);
  std::memcpy(first.data() + 1, &time, sizeof time);
  EXPECT_EQ(records[0], first);
  // Step 300 is the varint AC 02; the tag's value is a float.
  EXPECT_THAT(records[1], HasSubstr(std::string("\x10\xAC\x02\x2A", 4)));
  EXPECT_THAT(records[1], HasSubstr(std::string("\x0A\x0Fvalidation/loss\x15\0\0\0\x3F", 22)));
}

TEST(TensorBoardFile, HasATagForEveryNumberOfAStep) {
  const test::TemporaryFolder folder;
  TensorBoardFile file(folder.path(), 1);
  file.write(StepRecord{.seconds = {.total = 1},
                        .learning_rate = 1,
                        .gradient_norm = 1,
                        .loss_scale = 1,
                        .memory_bytes = 1,
                        .device_memory_bytes = 1,
                        .scalars = {{"mine", 1}}});
  file.write(EpochRecord{.loss = 1});
  const auto records = records_of(test::read_file(file.path()));
  ASSERT_THAT(records, SizeIs(3));
  for (const char* tag :
       {"train/loss", "train/learning_rate", "train/gradient_norm", "train/loss_scale",
        "train/samples_per_second", "memory/bytes", "memory/device_bytes", "time/data",
        "time/forward", "time/backward", "time/communication", "time/optimizer", "time/callbacks",
        "time/total", "scalars/mine"}) {
    EXPECT_THAT(records[1], HasSubstr(tag));
  }
  EXPECT_THAT(records[1], HasSubstr("of rank 0; train/epoch_loss is the mean over all ranks"));
  EXPECT_THAT(records[1], HasSubstr("of all ranks"));
  EXPECT_THAT(records[2], HasSubstr("train/epoch_loss"));
}

TEST(TensorBoardFile, TwoOfOneSecondHaveNamesOfTheirOwn) {
  const test::TemporaryFolder folder;
  EXPECT_NE(TensorBoardFile(folder.path(), 1).path(), TensorBoardFile(folder.path(), 1).path());
}

}  // namespace
}  // namespace trireme::report
