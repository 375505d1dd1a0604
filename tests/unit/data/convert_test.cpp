// SPDX-License-Identifier: Apache-2.0
#include "files.h"
#include <trireme/base/error.h>
#include <trireme/data/files/convert_dataset.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/data_command.h>
#include <gmock/gmock.h>

namespace trireme::data {
namespace {

using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using ::testing::HasSubstr;

constexpr std::size_t kRecord = 3073;

class FashionMnistToCifar10 : public ::testing::Test {
 protected:
  std::string output(const std::string& name) { return read_file(folder_ / "out" / name); }

  TemporaryFolder folder_;
};

TEST_F(FashionMnistToCifar10, PadsTheImagesAndRepeatsThemInThreeChannels) {
  testing::write_mnist(folder_.path(), 12, 3);
  const Conversion written = fashion_mnist_to_cifar10(folder_.path(), folder_ / "out");
  EXPECT_EQ(written.train, 12);
  EXPECT_EQ(written.test, 3);
  const std::string records = output("test_batch.bin");
  ASSERT_EQ(records.size(), 3 * kRecord);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(records[i * kRecord], static_cast<char>(i));
    for (std::size_t channel = 0; channel < 3; ++channel) {
      for (std::size_t y = 0; y < 32; ++y) {
        for (std::size_t x = 0; x < 32; ++x) {
          const bool is_border = y < 2 || y >= 30 || x < 2 || x >= 30;
          const auto expected = is_border ? char{0} : static_cast<char>(i + (y - 2) * 28 + x - 2);
          ASSERT_EQ(records[i * kRecord + 1 + channel * 1024 + y * 32 + x], expected)
              << "image " << i << " channel " << channel << " y " << y << " x " << x;
        }
      }
    }
  }
}

TEST_F(FashionMnistToCifar10, SpreadsTheTrainingImagesOverFiveFiles) {
  testing::write_mnist(folder_.path(), 12, 3);
  fashion_mnist_to_cifar10(folder_.path(), folder_ / "out");
  std::string labels;
  for (int i = 1; i <= 5; ++i) {
    const std::string records = output(join_message("data_batch_", i, ".bin"));
    ASSERT_EQ(records.size() % kRecord, 0U);
    for (std::size_t at = 0; at < records.size(); at += kRecord)
      labels.push_back(static_cast<char>('0' + records[at]));
  }
  EXPECT_EQ(labels, "012345678901");
  EXPECT_THAT(output("batches.meta.txt"), HasSubstr("ankle boot\n"));
}

TEST_F(FashionMnistToCifar10, LeavesNothingOfAnEarlierAndLargerConversion) {
  testing::write_mnist(folder_.path(), 12, 3);
  fashion_mnist_to_cifar10(folder_.path(), folder_ / "out");
  EXPECT_EQ(fashion_mnist_to_cifar10(folder_.path(), folder_ / "out", 2).train, 2);
  std::size_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out")) {
    if (entry.path().filename().string().starts_with("data_batch_")) bytes += entry.file_size();
  }
  EXPECT_EQ(bytes, 2 * kRecord);
}

TEST_F(FashionMnistToCifar10, RefusesImagesOfAnotherSize) {
  testing::write_mnist(folder_.path(), 1, 1);
  testing::write_gzip(folder_ / "train-images-idx3-ubyte.gz", testing::idx_images(1, 20, 28));
  EXPECT_THAT(
      message_of<DataError>([&] { fashion_mnist_to_cifar10(folder_.path(), folder_ / "out"); }),
      HasSubstr("have 20 x 28 pixels, expected 28 x 28"));
}

TEST_F(FashionMnistToCifar10, RefusesMoreThanTenClasses) {
  testing::write_mnist(folder_.path(), 1, 1);
  testing::write_gzip(folder_ / "t10k-labels-idx1-ubyte.gz",
                      testing::big_endian(0x801) + testing::big_endian(1) + "A");
  EXPECT_THAT(
      message_of<DataError>([&] { fashion_mnist_to_cifar10(folder_.path(), folder_ / "out"); }),
      HasSubstr("label 65 of image 0"));
}

TEST_F(FashionMnistToCifar10, NamesTheFolderThatItCannotMake) {
  testing::write_mnist(folder_.path(), 1, 1);
  test::write_file(folder_ / "file", "");
  EXPECT_THAT(message_of<DataError>(
                  [&] { fashion_mnist_to_cifar10(folder_.path(), folder_ / "file" / "out"); }),
              HasSubstr("cannot make the folder " + (folder_ / "file" / "out").string()));
}

TEST_F(FashionMnistToCifar10, RefusesALimitBelowOne) {
  EXPECT_THAT(
      message_of<UsageError>([&] { fashion_mnist_to_cifar10(folder_.path(), folder_ / "out", 0); }),
      HasSubstr("a limit of 0 images"));
}

class DataCommand : public FashionMnistToCifar10 {
 protected:
  void SetUp() override { apps::add_data_command(app_); }

  std::string run(const std::string& arguments) {
    ::testing::internal::CaptureStdout();
    try {
      app_.parse("data fashion-mnist-to-cifar10 " + arguments);
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    return ::testing::internal::GetCapturedStdout();
  }

  CLI::App app_;
};

TEST_F(DataCommand, ConvertsAndSaysWhatItWrote) {
  testing::write_mnist(folder_.path(), 12, 3);
  const std::string out = (folder_ / "out").string();
  EXPECT_EQ(run("--from " + folder_.path().string() + " --to " + out + " --limit 4"),
            "wrote 4 training and 3 test images (32 x 32, 3 channels) to " + out + "\n");
  EXPECT_EQ(output("data_batch_1.bin").size(), kRecord);
}

TEST_F(DataCommand, NeedsAFolderToWriteTo) { EXPECT_THROW(run("--limit 4"), CLI::RequiredError); }

TEST_F(DataCommand, RefusesALimitBelowOne) {
  EXPECT_THROW(run("--to x --limit 0"), CLI::ValidationError);
}

TEST_F(DataCommand, PassesErrorsOn) {
  EXPECT_THAT(
      message_of<DataError>([&] { run("--from " + (folder_ / "nowhere").string() + " --to x"); }),
      HasSubstr("no folder"));
}

}  // namespace
}  // namespace trireme::data
