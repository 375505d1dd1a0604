// SPDX-License-Identifier: Apache-2.0
// Sizes, names, shapes, initial values, positions, learning. Values against Python are held by
// tests/parity/models.
#include <models/vit.h>

#include <trireme/parallel/deferred.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <tests/unit/models/count_parameters.h>

#include <cstdint>
#include <string>
#include <vector>

namespace models {
namespace {

using ::testing::HasSubstr;
using trireme::test::message_of;

ViTOptions small_vit() {
  return {.image_size = 12,
          .patch_size = 4,
          .channels = 2,
          .hidden = 16,
          .layers = 2,
          .heads = 4,
          .feed_forward = 24,
          .classes = 5};
}

std::int64_t num_parameters(const ViTOptions& options) {
  const std::int64_t hidden = options.hidden;
  const std::int64_t per_side = options.image_size / options.patch_size;
  const std::int64_t tokens = 1 + per_side * per_side;
  const std::int64_t patch = options.channels * options.patch_size * options.patch_size;
  const std::int64_t attention = 4 * hidden * (hidden + 1);
  const std::int64_t mlp = 2 * hidden * options.feed_forward + options.feed_forward + hidden;
  const std::int64_t block = attention + mlp + 4 * hidden;
  return (patch + 1) * hidden + hidden + tokens * hidden + options.layers * block + 2 * hidden +
         (hidden + 1) * options.classes;
}

TEST(ViT, MapsImagesToLogits) {
  const torch::NoGradGuard no_grad;
  ViT net(small_vit());
  EXPECT_EQ(net(torch::randn({3, 2, 12, 12})).sizes(), (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(net(torch::randn({1, 2, 12, 12})).sizes(), (std::vector<std::int64_t>{1, 5}));
}

TEST(ViT, HasAsManyParametersAsItsOptionsSay) {
  auto options = small_vit();
  EXPECT_EQ(count_parameters(*ViT(options)), num_parameters(options));
  options.patch_size = 6;
  options.layers = 3;
  options.feed_forward = 7;
  EXPECT_EQ(count_parameters(*ViT(options)), num_parameters(options));
}

TEST(ViT, HasThePublishedNumberOfParameters) {
  struct Case {
    const char* name;
    ViTOptions options;
    std::int64_t parameters;
  };
  const std::vector<Case> cases = {
      {"ViT-B/16", {}, 86'567'656},
      {"ViT-B/32", {.patch_size = 32}, 88'224'232},
      {"ViT-L/16", {.hidden = 1024, .layers = 24, .heads = 16, .feed_forward = 4096}, 304'326'632},
      {"ViT-H/14",
       {.patch_size = 14, .hidden = 1280, .layers = 32, .heads = 16, .feed_forward = 5120},
       632'045'800},
  };
  for (const auto& [name, options, parameters] : cases) {
    SCOPED_TRACE(name);
    const auto net = trireme::deferred([&] { return ViT(options); });  // without memory
    EXPECT_EQ(count_parameters(*net), parameters);
    EXPECT_EQ(num_parameters(options), parameters);
  }
}

TEST(ViT, NamesItsParameters) {
  const auto parameters = ViT(small_vit())->named_parameters();
  for (const char* name :
       {"class_token", "position_embedding", "patch_embedding.weight", "patch_embedding.bias",
        "blocks.0.norm1.weight", "blocks.0.attention.query.weight", "blocks.0.attention.key.bias",
        "blocks.0.attention.value.weight", "blocks.0.attention.output.bias", "blocks.1.norm2.bias",
        "blocks.1.mlp_input.weight", "blocks.1.mlp_output.bias", "norm.weight", "head.weight",
        "head.bias"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
}

TEST(ViT, StartsFromSmallNormalWeightsAndIdentityNorms) {
  torch::manual_seed(1);
  auto options = small_vit();
  options.hidden = 256;
  options.feed_forward = 128;
  options.classes = 20;
  const auto parameters = ViT(options)->named_parameters();
  for (const char* name : {"patch_embedding.weight", "position_embedding",
                           "blocks.0.mlp_input.weight", "head.weight"}) {
    EXPECT_NEAR(parameters[name].std().item<double>(), 0.02, 2e-3) << name;
    EXPECT_NEAR(parameters[name].mean().item<double>(), 0, 2e-3) << name;
  }
  for (const char* name : {"class_token", "patch_embedding.bias", "blocks.0.attention.query.bias",
                           "head.bias", "norm.bias"}) {
    EXPECT_EQ(parameters[name].abs().sum().item<double>(), 0) << name;
  }
  EXPECT_TRUE(torch::equal(parameters["blocks.1.norm1.weight"], torch::ones({256})));
}

// The class token sees all patches alike, whatever their order; only their positions differ.
TEST(ViT, SeesWherePatchesAreByTheirPositionsAlone) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  ViT net(small_vit());
  for (auto& parameter : net->parameters()) parameter.normal_(0, 0.3);
  const auto images = torch::randn({2, 2, 12, 12});
  const auto moved = images.roll({4}, {2});  // by one patch
  EXPECT_GT((net(images) - net(moved)).abs().max().item<double>(), 1e-3);
  net->named_parameters()["position_embedding"].zero_();
  EXPECT_TRUE(torch::allclose(net(images), net(moved), 1e-4, 1e-5));
}

TEST(ViT, DropsNothingInEvaluation) {
  auto options = small_vit();
  options.dropout = 0.5;
  ViT net(options);
  const auto images = torch::randn({2, 2, 12, 12});
  EXPECT_FALSE(torch::equal(net(images), net(images)));
  net->eval();
  EXPECT_TRUE(torch::equal(net(images), net(images)));
}

TEST(ViT, LearnsABatchByHeart) {
  torch::manual_seed(3);
  ViT net(small_vit());
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const auto images = torch::randn({16, 2, 12, 12});
  const auto labels = torch::arange(16).remainder(5);
  double loss_value = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(net(images), labels);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  EXPECT_LT(loss_value, 0.3);
}

TEST(ViT, RefusesImagesThatDoNotFit) {
  ViT net(small_vit());
  const auto refusal = [&](const std::vector<std::int64_t>& sizes) {
    return message_of<c10::Error>([&] { net(torch::randn(sizes)); });
  };
  EXPECT_THAT(refusal({1, 2, 16, 12}), HasSubstr("images are [1, 2, 16, 12], expected [batch, "
                                                 "channels, 12, 12], as ViTOptions.image_size"));
  EXPECT_THAT(refusal({2, 12, 12}), HasSubstr("images are [2, 12, 12]"));
}

TEST(ViT, RefusesOptionsThatDoNotFit) {
  const auto refusal = [](const auto& change) {
    auto options = small_vit();
    change(options);
    return message_of<c10::Error>([&] { const ViT net(options); });
  };
  EXPECT_THAT(refusal([](auto& options) { options.patch_size = 5; }),
              HasSubstr("patch_size is 5, expected a number that divides image_size, which is 12"));
  EXPECT_THAT(refusal([](auto& options) { options.patch_size = 0; }), HasSubstr("patch_size is 0"));
  EXPECT_THAT(refusal([](auto& options) { options.heads = 3; }),
              HasSubstr("heads is 3, expected a number that divides hidden, which is 16"));
  EXPECT_THAT(refusal([](auto& options) { options.layers = 0; }),
              HasSubstr("layers is 0, expected 1 or more"));
}

}  // namespace
}  // namespace models
