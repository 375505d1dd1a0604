// SPDX-License-Identifier: Apache-2.0
// mixup and cutmix.
#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>
#include <string>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;
using testing::Numbers;

constexpr std::int64_t kRows = 5;

// Every pixel of image i is i, and so is its class.
std::shared_ptr<const Dataset> plain_images(at::ScalarType dtype = at::kFloat) {
  const at::Tensor numbers = at::arange(kRows);
  return tensors({{"image", numbers.to(dtype).view({kRows, 1, 1, 1}).expand({kRows, 2, 6, 8})},
                  {"label", numbers}});
}

Batch mixed(const BatchTransform& transform, std::int64_t epoch = 0,
            const std::shared_ptr<const Dataset>& set = plain_images()) {
  return *DataLoader(set).batch(kRows).map_batch(transform).open(epoch)->next();
}

// The part of its own class in every row of the label.
double own_weight(const Batch& batch) { return batch["label"][0][0].item<double>(); }

void expect_mixed_labels(const Batch& batch) {
  const double w = own_weight(batch);
  EXPECT_EQ(batch["label"].scalar_type(), at::kFloat);
  const at::Tensor own = at::one_hot(at::arange(kRows), kRows).to(at::kFloat);
  const at::Tensor expected = own * w + at::roll(own, 1, 0) * (1 - w);
  EXPECT_TRUE(at::allclose(batch["label"], expected, 1e-6, 1e-6));
}

TEST(Mixup, MixesEveryImageAndLabelWithTheRowBefore) {
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const Batch batch = mixed(mixup(kRows, 0.4), epoch);
    const double w = own_weight(batch);
    EXPECT_GE(w, 0);
    EXPECT_LE(w, 1);
    expect_mixed_labels(batch);
    const at::Tensor x = at::arange(kRows).to(at::kFloat);
    const at::Tensor expected = x * w + at::roll(x, 1, 0) * (1 - w);
    EXPECT_TRUE(at::allclose(batch["image"], expected.view({kRows, 1, 1, 1}).expand({5, 2, 6, 8}),
                             1e-5, 1e-5));
  }
}

TEST(Mixup, KeepsFloat64) {
  EXPECT_EQ(mixed(mixup(kRows), 0, plain_images(at::kDouble))["image"].scalar_type(), at::kDouble);
}

TEST(Mixup, DrawsFromTheBetaDistribution) {
  const auto set = tensors({{"image", at::zeros({2, 1})}, {"label", at::arange(2)}});
  for (const double alpha : {0.2, 1.0, 4.0}) {
    const auto loader = DataLoader(set).batch(2).map_batch(mixup(2, alpha)).repeat(4000);
    const auto stream = loader.open(0);
    double sum = 0;
    double squares = 0;
    while (const auto batch = stream->next()) {
      const double w = (*batch)["label"][0][0].item<double>();
      sum += w;
      squares += w * w;
    }
    const double mean = sum / 4000;
    EXPECT_NEAR(mean, 0.5, 0.03) << alpha;
    EXPECT_NEAR(squares / 4000 - mean * mean, 1 / (4 * (2 * alpha + 1)), 0.01) << alpha;
  }
}

TEST(Mixup, GivesFiniteWeightsForTheSmallestAlpha) {
  for (std::int64_t epoch = 0; epoch < 50; ++epoch)
    EXPECT_TRUE(std::isfinite(own_weight(mixed(mixup(kRows, 1e-3), epoch))));
}

TEST(Cutmix, PutsOneRectangleOfTheRowBeforeIntoEveryImage) {
  bool has_changed = false;
  for (std::int64_t epoch = 0; epoch < 30; ++epoch) {
    const Batch batch = mixed(cutmix(kRows), epoch);
    expect_mixed_labels(batch);
    const at::Tensor own = at::arange(kRows).view({kRows, 1, 1, 1});
    const at::Tensor is_own = batch["image"].eq(own);
    const at::Tensor is_previous = batch["image"].eq(at::roll(own, 1, 0));
    EXPECT_TRUE(is_own.logical_xor(is_previous).all().item<bool>());
    EXPECT_TRUE(is_previous.eq(is_previous[0][0]).all().item<bool>());  // everywhere the same place
    const at::Tensor place = is_previous[0][0];
    const auto area = place.sum().item<std::int64_t>();
    const auto sides =
        place.any(1).sum().item<std::int64_t>() * place.any(0).sum().item<std::int64_t>();
    EXPECT_EQ(area, sides);
    EXPECT_NEAR(own_weight(batch), 1 - static_cast<double>(area) / 48, 1e-6);
    has_changed = has_changed || area > 0;
  }
  EXPECT_TRUE(has_changed);
}

TEST(Cutmix, TakesBytesAndImagesMixedBefore) {
  EXPECT_EQ(mixed(cutmix(kRows), 0, plain_images(at::kByte))["image"].scalar_type(), at::kByte);
  const auto twice =
      DataLoader(plain_images()).batch(kRows).map_batch(mixup(kRows)).map_batch(cutmix(kRows));
  const auto batch = twice.open(1)->next();
  EXPECT_TRUE(at::allclose((*batch)["label"].sum(1), at::full({kRows}, 1.0, at::kFloat)));
}

TEST(Mixing, GivesTheSameWithAnyNumberOfWorkersAndResumed) {
  const auto set = tensors({{"image", at::rand({11, 3, 6, 6})}, {"label", at::arange(11)}});
  testing::expect_same_for_workers_and_resumed(DataLoader(set)
                                                   .shuffle(1)
                                                   .shard({.index = 1, .count = 2})
                                                   .batch(2)
                                                   .map_batch(mixup(11, 0.3))
                                                   .map_batch(cutmix(11))
                                                   .repeat(2),
                                               2);
}

TEST(Mixing, TakesColumnsOfOtherNames) {
  const auto set = tensors({{"x", at::zeros({2, 1, 2, 2})}, {"y", at::arange(2)}});
  const auto loader = DataLoader(set).batch(2).map_batch(mixup(2, 1, {.image = "x", .label = "y"}));
  EXPECT_EQ((*loader.open(0)->next())["y"].sizes(), (Numbers{2, 2}));
}

std::string refusal_of(const BatchTransform& transform,
                       std::vector<std::pair<std::string, at::Tensor>> columns) {
  const auto loader = DataLoader(tensors(std::move(columns))).batch(3).map_batch(transform);
  return message_of<UsageError>([&] { loader.open(0)->next(); });
}

TEST(Mixing, RefusesColumnsThatCannotBeMixed) {
  const at::Tensor images = at::zeros({3, 1, 2, 2});
  const at::Tensor labels = at::arange(3);
  EXPECT_THAT(refusal_of(mixup(3), {{"image", images.to(at::kByte)}, {"label", labels}}),
              HasSubstr("operation 1 (mixup): the images are Byte [3, 1, 2, 2], expected Float"));
  EXPECT_THAT(refusal_of(mixup(2), {{"image", images}, {"label", labels}}),
              HasSubstr("the label of row 2 is 2, expected 0 to 1"));
  EXPECT_THAT(refusal_of(cutmix(3), {{"image", images}, {"label", labels.to(at::kFloat)}}),
              HasSubstr("operation 1 (cutmix): the labels are Float [3], expected class numbers"));
  EXPECT_THAT(refusal_of(mixup(3), {{"x", images}, {"label", labels}}),
              HasSubstr("no column 'image'; the columns are 'x', 'label'"));
  EXPECT_THAT(refusal_of(cutmix(3), {{"image", at::zeros({3, 2})}, {"label", labels}}),
              HasSubstr("the images are Float [3, 2], expected [rows, ..., height, width]"));
  EXPECT_THAT(refusal_of(cutmix(3), {{"image", at::zeros({3, 1, 0, 2})}, {"label", labels}}),
              HasSubstr("with pixels"));
}

TEST(Mixing, RefusesSettingsWithoutSense) {
  EXPECT_THAT(message_of<UsageError>([] { mixup(0); }), HasSubstr("mixup with 0 classes"));
  EXPECT_THAT(message_of<UsageError>([] { mixup(3, 0); }), HasSubstr("mixup with alpha 0"));
  EXPECT_THAT(message_of<UsageError>([] { cutmix(3, std::nan("")); }),
              HasSubstr("cutmix with alpha nan"));
}

}  // namespace
}  // namespace trireme::data
