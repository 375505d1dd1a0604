// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/model_config.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme {
namespace {

using config::Configuration;
using test::message_of;
using ::testing::HasSubstr;

TEST(ModelConfig, ReadsThePlainSettingsAndThePlan) {
  ModelOptions options;
  Configuration configuration(options);
  configuration.read_text(R"(
input_column = "image"
target_column = "label"
clip_norm = 1
autocast = "bfloat16"
deterministic = 7
loss_scale.initial = 1024
plan.zero_level = 2
)",
                          "model.toml");
  EXPECT_EQ(options.input_column, "image");
  EXPECT_EQ(options.target_column, "label");
  EXPECT_EQ(options.clip_norm, 1.0);
  EXPECT_EQ(options.autocast, at::kBFloat16);
  EXPECT_EQ(options.deterministic, 7U);
  EXPECT_EQ(options.loss_scale.initial, 1024.0);
  EXPECT_EQ(options.plan.zero_level, 2);
  configuration.set("autocast=float16");
  EXPECT_EQ(options.autocast, at::kHalf);

  ModelOptions again;
  Configuration read(again);
  read.read_text(configuration.to_toml(), "saved.toml");
  EXPECT_EQ(read.to_texts(), configuration.to_texts());
}

TEST(ModelConfig, RefusesTypesThatAreNotOfHalfPrecision) {
  ModelOptions options;
  Configuration configuration(options);
  EXPECT_THAT(message_of<ConfigError>([&] { configuration.set("autocast=float32"); }),
              HasSubstr("of half precision"));
  EXPECT_THAT(message_of<ConfigError>([&] { configuration.set("autocast=int8"); }),
              HasSubstr("expected one of \"float32\", \"float64\", \"float16\", \"bfloat16\""));
  options.autocast = at::kInt;
  EXPECT_THAT(message_of<ConfigError>([&] { configuration.check(); }),
              HasSubstr("set by the program: autocast is \"Int\""));
}

TEST(ModelConfig, FitOptionsHaveTheirNumbers) {
  FitOptions options;
  Configuration configuration(options);
  configuration.set("epochs=3");
  configuration.set("validate_every_steps=100");
  EXPECT_EQ(options.epochs, 3);
  EXPECT_EQ(options.validate_every_steps, 100);
  EXPECT_THROW(configuration.set("epochs=0"), ConfigError);
}

}  // namespace
}  // namespace trireme
