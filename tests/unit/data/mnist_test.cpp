// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/mnist.h>

#include "files.h"
#include <trireme/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

namespace trireme::data {
namespace {

using test::message_of;
using test::TemporaryFolder;
using test::write_file;
using ::testing::AllOf;
using testing::big_endian;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::idx_images;
using testing::idx_labels;
using testing::write_gzip;

// The most that this process ever held.
std::int64_t peak_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

class Mnist : public ::testing::Test {
 protected:
  std::string load_error(Split split = Split::kTrain) {
    return message_of<DataError>([&] { mnist(folder_.path(), split); });
  }

  TemporaryFolder folder_;
};

TEST_F(Mnist, ReadsGzipFiles) {
  testing::write_mnist(folder_.path(), 12, 3);
  const auto train = mnist(folder_.path(), Split::kTrain);
  EXPECT_EQ(train->size(), 12);
  EXPECT_THAT(train->columns(), ElementsAre("image", "label"));
  const auto sample = train->get(11);
  EXPECT_EQ(sample[0].sizes(), (std::vector<std::int64_t>{1, 28, 28}));
  EXPECT_TRUE(at::equal(sample[0].flatten(), at::arange(11, 11 + 784).to(at::kByte)));
  EXPECT_EQ(sample[1].scalar_type(), at::kLong);
  EXPECT_EQ(sample[1].dim(), 0);
  EXPECT_EQ(sample[1].item<std::int64_t>(), 1);
  EXPECT_EQ(mnist(folder_.path(), Split::kTest)->size(), 3);
}

TEST_F(Mnist, ReadsPlainFilesOfAnySize) {
  write_file(folder_ / "t10k-images-idx3-ubyte", idx_images(4, 3, 5));
  write_file(folder_ / "t10k-labels-idx1-ubyte", idx_labels(4));
  const auto test = mnist(folder_.path(), Split::kTest);
  EXPECT_EQ(test->size(), 4);
  EXPECT_EQ(test->get(2)[0].sizes(), (std::vector<std::int64_t>{1, 3, 5}));
  EXPECT_EQ(test->get(2)[0][0][1][0].item<int>(), 2 + 5);
}

// One flipped bit makes 2^20 images of 28 x 28 out of none, which a file of this size could hold.
TEST_F(Mnist, TakesMemoryForWhatIsThereAndNotForWhatTheHeaderPromises) {
  const std::string zeros(std::size_t{1} << 20, '\0');
  write_file(folder_ / "train-images-idx3-ubyte",
             big_endian(0x803) + big_endian(1U << 20) + big_endian(28) + big_endian(28) + zeros);
  write_file(folder_ / "train-labels-idx1-ubyte", idx_labels(1U << 20));
  const std::int64_t before = peak_memory_bytes();
  EXPECT_THAT(load_error(), HasSubstr("cut short"));
  EXPECT_LT(peak_memory_bytes() - before, std::int64_t{400} << 20);
}

TEST_F(Mnist, OutlivesTheDataSetThatTheTensorsCameFrom) {
  testing::write_mnist(folder_.path(), 2, 1);
  const at::Tensor image = mnist(folder_.path(), Split::kTrain)->get(1)[0];
  EXPECT_EQ(image[0][0][3].item<int>(), 4);
}

TEST_F(Mnist, NamesFolderFilesAndRemedyWhereTheFolderIsMissing) {
  EXPECT_THAT(message_of<DataError>([&] { mnist(folder_ / "nowhere", Split::kTrain); }),
              AllOf(HasSubstr("no folder " + (folder_ / "nowhere").string()),
                    HasSubstr("train-images-idx3-ubyte.gz"), HasSubstr("dataset-fashion-mnist"),
                    HasSubstr("/usr/share/datasets/fashion-mnist")));
}

TEST_F(Mnist, NamesTheMissingFile) {
  write_file(folder_ / "train-images-idx3-ubyte", idx_images(1, 28, 28));
  EXPECT_THAT(load_error(),
              AllOf(HasSubstr("no data set in " + folder_.path().string()),
                    HasSubstr("train-labels-idx1-ubyte.gz and train-labels-idx1-ubyte"),
                    HasSubstr("apt-get install dataset-fashion-mnist")));
}

TEST_F(Mnist, RefusesATruncatedGzipFile) {
  testing::write_mnist(folder_.path(), 12, 3);
  const auto path = folder_ / "train-images-idx3-ubyte.gz";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 20);
  EXPECT_THAT(load_error(),
              AllOf(HasSubstr(path.string()), HasSubstr("offset "), HasSubstr("cut short")));
}

TEST_F(Mnist, RefusesADamagedGzipFile) {
  testing::write_mnist(folder_.path(), 12, 3);
  const auto path = folder_ / "train-images-idx3-ubyte.gz";
  std::string bytes = test::read_file(path);
  bytes[bytes.size() - 6] = static_cast<char>(bytes[bytes.size() - 6] ^ 1);  // in the checksum
  write_file(path, bytes);
  EXPECT_THAT(load_error(),
              AllOf(HasSubstr(path.string()), HasSubstr("cannot be read: incorrect data check")));
}

TEST_F(Mnist, RefusesATruncatedPlainFile) {
  const std::string images = idx_images(2, 28, 28);
  write_file(folder_ / "train-images-idx3-ubyte", images.substr(0, images.size() - 7));
  write_file(folder_ / "train-labels-idx1-ubyte", idx_labels(2));
  EXPECT_THAT(
      load_error(),
      HasSubstr("train-images-idx3-ubyte: offset 1577: the file is cut short, 7 more bytes"));
}

TEST_F(Mnist, RefusesAFileThatGoesOn) {
  write_file(folder_ / "train-images-idx3-ubyte", idx_images(2, 28, 28));
  write_file(folder_ / "train-labels-idx1-ubyte", idx_labels(2) + "x");
  EXPECT_THAT(load_error(), HasSubstr("train-labels-idx1-ubyte: offset 10: the file goes on"));
}

TEST_F(Mnist, NamesFileOffsetValueAndExpectedOfAWrongMagicNumber) {
  write_file(folder_ / "train-images-idx3-ubyte", idx_images(2, 28, 28));
  write_gzip(folder_ / "train-labels-idx1-ubyte.gz", idx_images(2, 28, 28));
  EXPECT_THAT(load_error(),
              HasSubstr((folder_ / "train-labels-idx1-ubyte.gz").string() +
                        ": offset 0: magic number 0x00000803, expected 0x00000801 for labels"));
}

TEST_F(Mnist, RefusesCountsThatDiffer) {
  write_file(folder_ / "train-images-idx3-ubyte", idx_images(3, 28, 28));
  write_file(folder_ / "train-labels-idx1-ubyte", idx_labels(2));
  EXPECT_THAT(load_error(), AllOf(HasSubstr("train-images-idx3-ubyte has 3 images"),
                                  HasSubstr("train-labels-idx1-ubyte has 2 labels")));
}

TEST_F(Mnist, TakesNoMemoryForAHeaderThatPromisesTooMuch) {
  write_file(folder_ / "train-images-idx3-ubyte",
             big_endian(0x803) + big_endian(0xFFFFFFFF) + big_endian(16384) + big_endian(16384));
  write_file(folder_ / "train-labels-idx1-ubyte", big_endian(0x801) + big_endian(0xFFFFFFFF));
  EXPECT_THAT(load_error(), HasSubstr("more than this file can hold"));
}

TEST_F(Mnist, RefusesImagesWithoutPixels) {
  write_file(folder_ / "train-images-idx3-ubyte", idx_images(1, 0, 28));
  write_file(folder_ / "train-labels-idx1-ubyte", idx_labels(1));
  EXPECT_THAT(load_error(), HasSubstr("offset 8: images of 0 x 28 pixels"));
}

TEST_F(Mnist, ReadsTheRealSetWhereItIsInstalled) {
  const std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder))
    GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  const auto test = mnist(folder, Split::kTest);
  EXPECT_EQ(test->size(), 10000);
  EXPECT_EQ(test->get(0)[1].item<std::int64_t>(), 9);  // an ankle boot
}

}  // namespace
}  // namespace trireme::data
