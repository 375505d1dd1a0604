// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/images/image_folder.h>

#include "encoders.h"
#include <trireme/base/error.h>
#include <trireme/data/data_loader.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <png.h>
#include <tests/temporary_folder.h>

#include <set>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::jpeg_of;
using testing::noise;
using testing::png_of;
using Sizes = std::vector<std::int64_t>;

std::string png(std::int64_t height, std::int64_t width) {
  return png_of(height, width, {PNG_COLOR_TYPE_RGB}, noise(height, width, 3).bytes);
}

class ImageFolder : public ::testing::Test {
 protected:
  ImageFolder() {
    folder_.write("cat/1.jpg", jpeg_of(noise(9, 12, 3)));
    folder_.write("cat/deep/2.PNG", png(7, 5));
    folder_.write("dog/no-extension", png(20, 30));
    folder_.write("dog/really-png.JPEG", png(6, 6));
    folder_.write("dog/thumbs.db", "not an image");
    folder_.write("dog/short", "x");
  }

  test::TemporaryFolder folder_;
};

TEST_F(ImageFolder, FindsImagesByNameAndByTheirFirstBytes) {
  const auto set = image_folder(folder_.path());
  EXPECT_THAT(set->classes(), ElementsAre("cat", "dog"));
  EXPECT_THAT(set->columns(), ElementsAre("image", "label"));
  ASSERT_EQ(set->size(), 4);
  const std::vector<Sizes> sizes = {{3, 9, 12}, {3, 7, 5}, {3, 20, 30}, {3, 6, 6}};
  for (std::int64_t i = 0; i < set->size(); ++i) {
    const auto sample = set->get(i);
    EXPECT_EQ(sample[0].sizes(), sizes[static_cast<std::size_t>(i)]);
    EXPECT_EQ(sample[1].item<std::int64_t>(), i / 2);
    EXPECT_TRUE(at::equal(sample[0], read_image(set->file(i))));
  }
}

TEST_F(ImageFolder, PassesItsOptionsOn) {
  const auto set = image_folder(folder_.path(), {.colors = Colors::kGrey, .max_pixels = 108});
  EXPECT_EQ(set->get(0)[0].sizes(), (Sizes{1, 9, 12}));
  EXPECT_THAT(message_of<DataError>([&] { set->get(2); }),
              AllOf(HasSubstr((folder_ / "dog/no-extension").string()),
                    HasSubstr("20 x 30 pixels, more than the 108")));
}

TEST_F(ImageFolder, FeedsBatchesOfOneSize) {
  const auto set = image_folder(folder_.path());
  const auto stream = DataLoader(set).map("image", resize(8, 10)).batch(3).prefetch(2, 2).open(0);
  const auto batch = stream->next();
  ASSERT_TRUE(batch);
  const at::Tensor& images = (*batch)["image"];
  EXPECT_EQ(images.sizes(), (Sizes{3, 3, 8, 10}));
  EXPECT_EQ(images.scalar_type(), at::kByte);
  for (std::int64_t i = 0; i < 3; ++i) {
    Random unused(0, 0, 0, 0);
    EXPECT_TRUE(at::equal(images[i], resize(8, 10)(set->get(i)[0], unused)));
  }
  EXPECT_EQ(stream->next()->rows(), 1);
}

TEST_F(ImageFolder, TakesTheUsualPreparationsForTraining) {
  const auto loader = DataLoader(image_folder(folder_.path()))
                          .shuffle(1)
                          .map("image", random_resized_crop(16, 16))
                          .map("image", random_horizontal_flip())
                          .map("image", normalize({123.675, 116.28, 103.53}, {58.4, 57.1, 57.4}))
                          .batch(4)
                          .prefetch(1);
  const auto batch = loader.open(3)->next();
  ASSERT_TRUE(batch);
  EXPECT_EQ((*batch)["image"].sizes(), (Sizes{4, 3, 16, 16}));
  EXPECT_EQ((*batch)["image"].scalar_type(), at::kFloat);
  std::multiset<std::int64_t> labels;
  for (std::int64_t i = 0; i < 4; ++i) labels.insert((*batch)["label"][i].item<std::int64_t>());
  EXPECT_THAT(labels, ElementsAre(0, 0, 1, 1));
}

TEST_F(ImageFolder, NamesSampleAndFileOfADamagedImage) {
  const std::string whole = png(40, 40);
  const auto path = folder_.write("cat/1.jpg", whole.substr(0, 100));
  const auto stream =
      DataLoader(image_folder(folder_.path())).map("image", resize(8, 8)).prefetch(1).open(0);
  EXPECT_THAT(message_of<DataError>([&] { stream->next(); }),
              AllOf(HasSubstr("sample 0"),
                    HasSubstr(path.string() + ": offset 100: PNG: the file is cut short")));
}

TEST_F(ImageFolder, NamesAClassWithoutImages) {
  folder_.write("elk/readme.txt", "none yet");
  EXPECT_THAT(message_of<DataError>([&] { image_folder(folder_.path()); }),
              HasSubstr((folder_ / "elk").string() + " has no images (JPEG, PNG)"));
}

}  // namespace
}  // namespace trireme::data
