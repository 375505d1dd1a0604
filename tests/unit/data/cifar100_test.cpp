// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/data/cifar.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::data {
namespace {

using test::message_of;
using test::TemporaryFolder;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every byte of the image is its fine label.
std::string record(int coarse, int fine) {
  return std::string(1, static_cast<char>(coarse)) + std::string(3073, static_cast<char>(fine));
}

TEST(Cifar100, ReadsBothLabels) {
  const TemporaryFolder folder;
  write_file(folder / "train.bin", record(19, 99) + record(4, 0) + record(0, 57));
  write_file(folder / "test.bin", record(7, 8));
  const auto train = cifar100(folder.path(), Split::kTrain);
  EXPECT_THAT(train->columns(), ElementsAre("image", "label", "coarse_label"));
  ASSERT_EQ(train->size(), 3);
  const std::vector<std::pair<int, int>> expected = {{19, 99}, {4, 0}, {0, 57}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto sample = train->get(static_cast<std::int64_t>(i));
    EXPECT_EQ(sample[0].sizes(), (std::vector<std::int64_t>{3, 32, 32}));
    EXPECT_EQ(sample[0].scalar_type(), at::kByte);
    EXPECT_EQ(sample[0][0][0][0].item<int>(), expected[i].second);
    EXPECT_EQ(sample[0][2][31][31].item<int>(), expected[i].second);
    EXPECT_EQ(sample[1].scalar_type(), at::kLong);
    EXPECT_EQ(sample[1].dim(), 0);
    EXPECT_EQ(sample[1].item<int>(), expected[i].second);
    EXPECT_EQ(sample[2].item<int>(), expected[i].first);
  }
  EXPECT_EQ(train->stored().size(), 3);
  EXPECT_EQ(cifar100(folder.path(), Split::kTest)->get(0)[2].item<int>(), 7);
}

TEST(Cifar100, NamesFileAndOffsetOfAShortRecord) {
  const TemporaryFolder folder;
  write_file(folder / "train.bin", record(1, 2) + "rest");
  EXPECT_THAT(message_of<DataError>([&] { cifar100(folder.path(), Split::kTrain); }),
              AllOf(HasSubstr((folder / "train.bin").string() +
                              ": offset 3074: the last record has 4 bytes, expected 3074"),
                    HasSubstr("CIFAR-100's binary format")));
}

TEST(Cifar100, NamesFileAndOffsetOfALabelThatCannotBe) {
  const TemporaryFolder folder;
  write_file(folder / "test.bin", record(1, 2) + record(20, 3));
  EXPECT_THAT(message_of<DataError>([&] { cifar100(folder.path(), Split::kTest); }),
              HasSubstr("test.bin: offset 3074: coarse_label 20, expected 0 to 19"));
  write_file(folder / "test.bin", record(1, 2) + record(3, 100));
  EXPECT_THAT(message_of<DataError>([&] { cifar100(folder.path(), Split::kTest); }),
              HasSubstr("test.bin: offset 3075: label 100, expected 0 to 99"));
}

TEST(Cifar100, NamesFolderFilesAndRemedyWhereTheyAreMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { cifar100(folder / "nowhere", Split::kTrain); }),
              AllOf(HasSubstr("no folder"), HasSubstr("train.bin"), HasSubstr("cifar-100-binary")));
  EXPECT_THAT(message_of<DataError>([&] { cifar100(folder.path(), Split::kTest); }),
              AllOf(HasSubstr("no data set in"), HasSubstr("looked for test.bin")));
}

}  // namespace
}  // namespace trireme::data
