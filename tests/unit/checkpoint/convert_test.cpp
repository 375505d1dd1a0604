// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/convert.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/inspect.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/reader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <string>

namespace trireme::checkpoint {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ConvertTest : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  torch::nn::Linear net_{4, 3};
  torch::optim::Adam optimizer_{net_->parameters()};

  void SetUp() override { train(); }

  void train() {
    optimizer_.zero_grad();
    net_->forward(torch::ones({2, 4})).sum().backward();
    optimizer_.step();
  }

  std::filesystem::path save_at(std::int64_t step) {
    return save({.folder = folder_.path(), .prefix = "demo", .keep = 0}, *net_, &optimizer_,
                {.epoch = 1, .step = step, .entries = {{"plan", "text"}}, .own = {{"rng", "x"}}});
  }
};

TEST_F(ConvertTest, ExportsOneFileAndLoadsItAgain) {
  const auto path = save_at(1);
  const auto file = folder_ / "model.safetensors";
  const FileDigest digest = export_safetensors(path, file);
  const TensorFile content = read_safetensors(file);
  EXPECT_EQ(content.digest, digest);
  EXPECT_TRUE(torch::equal(content.tensors.at("weight"), net_->weight));
  EXPECT_EQ(content.metadata.at("format"), "pt");
  torch::nn::Linear other(4, 3);
  load_model(file, *other);
  EXPECT_TRUE(torch::equal(other->weight, net_->weight));

  export_safetensors(path, folder_ / "optimizer.safetensors", "optimizer");
  EXPECT_EQ(read_safetensors(folder_ / "optimizer.safetensors").tensors.size(), 4U);
  EXPECT_THAT(message_of<CheckpointError>([&] { export_safetensors(path, file, "nothing"); }),
              HasSubstr("has no section 'nothing'; it has model, optimizer"));
}

TEST_F(ConvertTest, MakesACheckpointOfAFile) {
  write_safetensors(folder_ / "weights.safetensors", module_tensors(*net_));
  const auto path = convert(folder_ / "weights.safetensors", {.folder = folder_ / "new"});
  EXPECT_EQ(path, folder_ / "new" / "checkpoint-0_0");
  torch::nn::Linear other(4, 3);
  load(path, *other, nullptr);
  EXPECT_TRUE(torch::equal(other->weight, net_->weight));
}

TEST_F(ConvertTest, SaysInWhatTwoCheckpointsDiffer) {
  const auto one = save_at(1);
  EXPECT_THAT(differences(one, one), IsEmpty());
  const auto copy = convert(one, {.folder = folder_.path(), .prefix = "copy"});
  EXPECT_THAT(differences(one, copy), IsEmpty());
  {
    const torch::NoGradGuard no_grad;
    net_->bias[1] += 0.5;
  }
  optimizer_.param_groups()[0].options().set_lr(0.5);
  const auto other = save({.folder = folder_.path(), .prefix = "demo", .keep = 0}, *net_,
                          &optimizer_, {.epoch = 1, .step = 2, .entries = {{"more", ""}}});
  EXPECT_THAT(
      differences(one, other),
      ElementsAre("step is 1 in the first, 2 in the second", "entry more is in the second alone",
                  "entry plan is in the first alone", "rank 0's entry rng is in the first alone",
                  "optimizer: options, or numbers in the state, differ",
                  HasSubstr("model: bias differs in 1 of 3 elements, by ")));
  torch::nn::Linear large(4, 5);
  const auto third = save({.folder = folder_.path(), .prefix = "large"}, *large, nullptr, {});
  EXPECT_THAT(differences(one, third),
              ::testing::Contains(HasSubstr("model: bias is F32 [3] in the one, F32 [5]")));
}

TEST_F(ConvertTest, DescribesACheckpoint) {
  EXPECT_THAT(describe_checkpoint(save_at(7)),
              AllOf(HasSubstr("checkpoint of format 2, epoch 1, step 7, number 1 of its prefix"),
                    HasSubstr("saved by 1 ranks"), HasSubstr("file model.safetensors, "),
                    HasSubstr("entries: plan (4 B)"), HasSubstr("entries of rank 0: rng (1 B)"),
                    HasSubstr("model: 2 tensors, 60 B"), HasSubstr("  weight  F32 [3, 4]"),
                    HasSubstr("optimizer.weight.exp_avg_sq")));
}

}  // namespace
}  // namespace trireme::checkpoint
