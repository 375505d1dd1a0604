// SPDX-License-Identifier: Apache-2.0
// `trireme checkpoint` on checkpoints of a small model.
#include <trireme/checkpoint/checkpoint.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <string>

namespace trireme {
namespace {

using test::Finished;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointCommand : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  torch::nn::Linear net_{4, 3};
  torch::optim::SGD optimizer_{net_->parameters(), 0.1};

  std::filesystem::path save_at(std::int64_t step) {
    return checkpoint::save({.folder = folder_.path(), .prefix = "demo", .keep = 0}, *net_,
                            &optimizer_, {.epoch = 1, .step = step});
  }

  static Finished run(const std::string& arguments) {
    return test::shell(test::variable("TRIREME_BIN") + "/trireme checkpoint " + arguments);
  }
};

TEST_F(CheckpointCommand, InspectsVerifiesAndCompares) {
  const std::string one = save_at(1);
  const Finished inspected = run("inspect " + one);
  EXPECT_EQ(inspected.code, 0) << inspected.output;
  EXPECT_THAT(inspected.output,
              AllOf(HasSubstr("epoch 1, step 1"), HasSubstr("weight  F32 [3, 4]")));

  {
    const torch::NoGradGuard no_grad;
    net_->bias.add_(1);
  }
  const std::string two = save_at(2);
  EXPECT_EQ(run("diff " + one + " " + one).code, 0);
  const Finished compared = run("diff " + one + " " + two);
  EXPECT_EQ(compared.code, 1) << compared.output;
  EXPECT_THAT(compared.output, HasSubstr("model: bias differs in 3 of 3 elements"));

  EXPECT_EQ(run("verify " + one + " " + two).code, 0);
  std::string bytes = test::read_file(folder_ / "demo-1_2" / "model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::write_file(folder_ / "demo-1_2" / "model.safetensors", bytes);
  const Finished verified = run("verify " + one + " " + two);
  EXPECT_EQ(verified.code, 1);
  EXPECT_THAT(verified.output, AllOf(HasSubstr(one + ": whole and undamaged"),
                                     HasSubstr(two + ": damaged"), HasSubstr("CRC-32")));
}

// They were called damaged.
TEST_F(CheckpointCommand, TellsFoldersThatAreNoCheckpointsFromDamagedOnes) {
  save_at(1);
  const Finished parent = run("verify " + folder_.path().string());
  EXPECT_EQ(parent.code, 1);
  EXPECT_THAT(parent.output, HasSubstr("holds checkpoints, and is none itself"));
  const Finished missing = run("verify " + (folder_ / "nothing").string());
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.output, HasSubstr("there is no such folder"));
}

TEST_F(CheckpointCommand, ConvertsAndPrunes) {
  const std::string one = save_at(1);
  save_at(2);
  save_at(3);
  const std::string file = folder_ / "weights.safetensors";
  EXPECT_EQ(run("convert " + one + " " + file).code, 0);
  const Finished converted =
      run("convert --prefix of_file " + file + " " + folder_.path().string());
  EXPECT_EQ(converted.code, 0) << converted.output;
  EXPECT_THAT(converted.output, HasSubstr("of_file-0_0"));
  torch::nn::Linear other(4, 3);
  checkpoint::load(folder_ / "of_file-0_0", *other, nullptr);
  EXPECT_TRUE(torch::equal(other->weight, net_->weight));

  const std::string prune = "prune " + folder_.path().string() + " --prefix demo --keep-last 1";
  EXPECT_THAT(run(prune + " --dry-run").output,
              AllOf(HasSubstr("would remove " + one), Not(HasSubstr("demo-1_3"))));
  EXPECT_EQ(checkpoint::list_checkpoints(folder_.path(), "demo").size(), 3U);
  EXPECT_EQ(run(prune).code, 0);
  EXPECT_EQ(checkpoint::list_checkpoints(folder_.path(), "demo").size(), 1U);
}

TEST_F(CheckpointCommand, SaysThatThereIsNothingToPrune) {
  save_at(1);
  const std::string prune = "prune --keep-last 1 " + folder_.path().string() + " --prefix ";
  const Finished misspelt = run(prune + "dmo");
  EXPECT_EQ(misspelt.code, 2);
  EXPECT_THAT(
      misspelt.output,
      AllOf(HasSubstr("no checkpoint in " + folder_.path().string() + " has the prefix 'dmo'"),
            HasSubstr("hint: did you mean 'demo'? the prefixes there are demo")));
  EXPECT_THAT(run("prune --keep-last 1 --prefix demo " + (folder_ / "no").string()).output,
              HasSubstr("/no is no folder"));
  const Finished kept = run(prune + "demo");
  EXPECT_EQ(kept.code, 0);
  EXPECT_EQ(kept.output, "nothing to remove: all are to stay\n");
}

// A terminal would obey what a name has in it.
TEST_F(CheckpointCommand, PrintsNamesWithoutControlCharacters) {
  const std::string header =
      R"({"\u001b[2Jweight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  const auto file = folder_ / "hostile.safetensors";
  test::write_file(file, bytes + header + std::string(4, '\0'));
  const Finished inspected = run("inspect " + file.string());
  EXPECT_EQ(inspected.code, 0) << inspected.output;
  EXPECT_THAT(inspected.output, AllOf(HasSubstr("?[2Jweight"), Not(HasSubstr("\x1b"))));
}

TEST_F(CheckpointCommand, SaysWhatIsWrong) {
  const Finished missing = run("inspect " + (folder_ / "nothing").string());
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.output, AllOf(HasSubstr("index.json cannot be opened"), HasSubstr("hint:")));
  EXPECT_EQ(run("prune " + folder_.path().string() + " --prefix demo").code, 2);
  EXPECT_EQ(run("diff one").code, 2);
}

}  // namespace
}  // namespace trireme
