// SPDX-License-Identifier: Apache-2.0
#include "files.h"
#include <trireme/base/error.h>
#include <trireme/data/cifar.h>

#include <gmock/gmock.h>

namespace trireme::data {
namespace {

using test::message_of;
using test::TemporaryFolder;
using test::write_file;
using ::testing::AllOf;
using testing::cifar_records;
using ::testing::HasSubstr;

TEST(Cifar10, ReadsItsFilesInTheOrderOfTheirNumbers) {
  const TemporaryFolder folder;
  write_file(folder / "data_batch_10.bin", cifar_records(5, 1));
  write_file(folder / "data_batch_2.bin", cifar_records(2, 3));
  write_file(folder / "data_batch_3.bin", "");
  write_file(folder / "data_batch_x.bin", "not one of them");
  write_file(folder / "test_batch.bin", cifar_records(8, 1));
  const auto train = cifar10(folder.path(), Split::kTrain);
  ASSERT_EQ(train->size(), 4);
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto sample = train->get(i);
    EXPECT_EQ(sample[0].sizes(), (std::vector<std::int64_t>{3, 32, 32}));
    EXPECT_EQ(sample[0].scalar_type(), at::kByte);
    EXPECT_EQ(sample[0][2][31][31].item<std::int64_t>(), i + 2);
    EXPECT_EQ(sample[1].item<std::int64_t>(), i + 2);
  }
  EXPECT_EQ(cifar10(folder.path(), Split::kTest)->get(0)[1].item<std::int64_t>(), 8);
}

TEST(Cifar10, NamesFileAndOffsetOfAShortRecord) {
  const TemporaryFolder folder;
  write_file(folder / "data_batch_1.bin", cifar_records(0, 2) + "rest");
  EXPECT_THAT(message_of<DataError>([&] { cifar10(folder.path(), Split::kTrain); }),
              HasSubstr((folder / "data_batch_1.bin").string() +
                        ": offset 6146: the last record has 4 bytes, expected 3073"));
}

TEST(Cifar10, NamesFileAndOffsetOfALabelThatCannotBe) {
  const TemporaryFolder folder;
  write_file(folder / "test_batch.bin", cifar_records(0, 1) + std::string(3073, 77));
  EXPECT_THAT(message_of<DataError>([&] { cifar10(folder.path(), Split::kTest); }),
              HasSubstr("test_batch.bin: offset 3073: label 77, expected 0 to 9"));
}

TEST(Cifar10, NamesAFolderInThePlaceOfAFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "test_batch.bin");
  EXPECT_THAT(message_of<DataError>([&] { cifar10(folder.path(), Split::kTest); }),
              HasSubstr((folder / "test_batch.bin").string() + " is not a file"));
}

TEST(Cifar10, NamesFolderFilesAndRemedyWhereTheyAreMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { cifar10(folder / "nowhere", Split::kTrain); }),
              AllOf(HasSubstr("no folder"), HasSubstr("data_batch_*.bin"),
                    HasSubstr("fashion-mnist-to-cifar10")));
  EXPECT_THAT(message_of<DataError>([&] { cifar10(folder.path(), Split::kTest); }),
              AllOf(HasSubstr("no data set in"), HasSubstr("test_batch.bin")));
}

}  // namespace
}  // namespace trireme::data
