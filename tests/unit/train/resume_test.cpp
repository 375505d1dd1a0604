// SPDX-License-Identifier: Apache-2.0
// Checkpoints from training, and runs that go on from them.
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <filesystem>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::momentum;
using testing::same_parameters;
using testing::small_network;
using ::testing::ThrowsMessage;

struct Interruption : std::exception {};

class Resume : public ::testing::Test {
 protected:
  data::DataLoader part(const comm::Group& group = {}) const {
    auto data = points_;
    data.shuffle(5)
        .shard({.index = group.rank(), .count = group.size()})
        .batch(4, data::LastBatch::kDrop);
    return data;
  }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& path : checkpoint::list_checkpoints(folder_, "test"))
      names.push_back(path.filename());
    return names;
  }

  checkpoint::SaveOptions save_options(std::int64_t keep = 0) const {
    return {.folder = folder_, .prefix = "test", .keep = keep};
  }

  test::TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
  data::DataLoader points_ = testing::points(40);  // 10 steps alone, 5 over two ranks
};

TEST_F(Resume, CheckpointsAreNamedByEpochAndStepAndTheLastAreKept) {
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  Checkpoint checkpoint({.save = save_options(3), .every_steps = 4, .every_epochs = 1});
  model.train(1, part(), {checkpoint});
  EXPECT_THAT(checkpoints(), ElementsAre("test-1_4", "test-1_8", "test-1_10"));
  model.train(1, part(),
              {checkpoint});  // steps 12, 16 and 20 of all, the last of them at the epoch's end
  EXPECT_THAT(checkpoints(), ElementsAre("test-2_2", "test-2_6", "test-2_10"));
}

TEST_F(Resume, AnInterruptedRunThatGoesOnEndsWithTheBitsOfAnUninterruptedOne) {
  auto straight = small_network();
  auto straight_optimizer = momentum(*straight);
  Model straight_model(straight, CrossEntropy(), straight_optimizer);
  straight_model.train(2, part());
  straight_model.train(1, part());

  for (const std::int64_t last : {4, 10, 13, 25}) {
    std::filesystem::remove_all(folder_);
    auto first = small_network();
    auto first_optimizer = momentum(*first);
    Model first_model(first, CrossEntropy(), first_optimizer);
    Checkpoint checkpoint({.save = save_options(1), .every_steps = 1, .every_epochs = 0});
    LambdaCallback interrupt({.step_end = [&](const StepEndContext& step) {
      if (step.global_step == last) throw Interruption();
    }});
    EXPECT_THROW(
        {
          first_model.train(2, part(), {checkpoint, interrupt});
          first_model.train(1, part(), {checkpoint, interrupt});
        },
        Interruption);

    auto second = small_network();
    auto second_optimizer = momentum(*second);
    Model second_model(second, CrossEntropy(), second_optimizer);
    second_model.resume(checkpoint::latest(folder_, "test").value());
    std::int64_t steps = 0;
    LambdaCallback count({.step_end = [&](const StepEndContext& step) {
      ++steps;
      EXPECT_EQ(step.global_step, last + steps);
    }});
    second_model.train(2, part(), {count});
    second_model.train(1, part(), {count});
    EXPECT_EQ(steps, 30 - last);
    EXPECT_TRUE(same_parameters(*second, *straight)) << "interrupted after step " << last;
  }
}

TEST_F(Resume, AfterGoingOnFromAnOlderCheckpointTheNewRunsAreTheNewest) {
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  Checkpoint every_fourth({.save = save_options(), .every_steps = 4});
  model.train(1, part(), {every_fourth});
  EXPECT_THAT(checkpoints(), ElementsAre("test-1_4", "test-1_8", "test-1_10"));

  model.resume(folder_ / "test-1_4");
  Checkpoint every_step({.save = save_options(), .every_steps = 1});
  LambdaCallback interrupt({.step_end = [&](const StepEndContext& step) {
    if (step.global_step == 6) throw Interruption();
  }});
  EXPECT_THROW(model.train(1, part(), {every_step, interrupt}), Interruption);
  EXPECT_EQ(checkpoint::latest(folder_, "test"), folder_ / "test-1_6");
}

TEST_F(Resume, TwoRanksWriteOneCheckpointAndBothGoOnFromIt) {
  std::array<torch::nn::Sequential, 6> networks{nullptr, nullptr, nullptr,
                                                nullptr, nullptr, nullptr};
  for (auto& network : networks) network = small_network();
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto own = static_cast<std::size_t>(group.rank());
    auto straight_optimizer = momentum(*networks[own]);
    Model straight(networks[own], CrossEntropy(), straight_optimizer, {.group = group});
    straight.train(2, part(group));

    auto first_optimizer = momentum(*networks[2 + own]);
    Model first(networks[2 + own], CrossEntropy(), first_optimizer, {.group = group});
    Checkpoint checkpoint({.save = save_options(), .every_steps = 3, .every_epochs = 0});
    first.train(1, part(group), {checkpoint});
    comm::barrier(group);

    auto second_optimizer = momentum(*networks[4 + own]);
    Model second(networks[4 + own], CrossEntropy(), second_optimizer, {.group = group});
    second.resume(folder_ / "test-1_3");
    second.train(2, part(group));
  });
  EXPECT_THAT(checkpoints(), ElementsAre("test-1_3"));
  EXPECT_TRUE(same_parameters(*networks[4], *networks[0]));
  EXPECT_TRUE(same_parameters(*networks[5], *networks[0]));
}

TEST_F(Resume, TheStateOfAShardedOptimizerIsSavedWholeAndCutForOtherRanks) {
  std::array<torch::nn::Sequential, 6> networks{nullptr, nullptr, nullptr,
                                                nullptr, nullptr, nullptr};
  for (auto& network : networks) network = small_network();
  const auto train = [&](torch::nn::Sequential& network, const comm::Group& group, int zero_level,
                         const Callbacks& callbacks, bool resumes) {
    auto optimizer = momentum(*network);
    Model model(network, CrossEntropy(), optimizer,
                {.group = group, .plan = {.zero_level = zero_level}});
    if (resumes) model.resume(folder_ / "test-1_3");
    model.train(resumes ? 2 : 1, part(group), callbacks);
  };
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto own = static_cast<std::size_t>(group.rank());
    Checkpoint checkpoint({.save = save_options(), .every_steps = 3, .every_epochs = 0});
    train(networks[own], group, 2, {checkpoint}, false);
    comm::barrier(group);
    train(networks[2 + own], group, 1, {}, true);
    train(networks[4 + own], group, 0, {}, true);
  });
  EXPECT_TRUE(same_parameters(*networks[2], *networks[3]));
  EXPECT_TRUE(same_parameters(*networks[2], *networks[4]));
}

TEST_F(Resume, RefusesToEnterAnEpochOfAnotherLengthHalfWay) {
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  Checkpoint checkpoint({.save = save_options(), .every_steps = 4, .every_epochs = 1});
  model.train(1, part(), {checkpoint});
  auto other = part();
  other.batch(8);

  model.resume(folder_ / "test-1_4");
  EXPECT_THAT(
      [&] { model.train(1, other); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("step 4 of 10"), HasSubstr("has 5 steps"))));
  model.resume(folder_ / "test-1_10");
  EXPECT_NO_THROW(model.train(1, other));
}

TEST_F(Resume, NamesTheRanksThatFoundDifferentCheckpoints) {
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  Checkpoint checkpoint({.save = save_options(), .every_steps = 5});
  model.train(1, part(), {checkpoint});
  std::array<torch::nn::Sequential, 2> networks{small_network(), small_network()};
  const auto thrown = testing::run_ranks_catching(2, [&](const comm::Group& group) {
    const auto& own = networks[static_cast<std::size_t>(group.rank())];
    auto own_optimizer = momentum(*own);
    Model own_model(own, CrossEntropy(), own_optimizer, {.group = group});
    own_model.resume(folder_ / (group.rank() == 0 ? "test-1_5" : "test-1_10"));
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(testing::message_of<CheckpointError>(exception),
                AllOf(HasSubstr("epoch 1, step 5,"), HasSubstr("on rank 0, epoch 1, step 10,"),
                      HasSubstr("on rank 1")));
  }
}

TEST_F(Resume, AFailureToSaveComesOutOfTrain) {
  auto network = small_network();
  auto optimizer = momentum(*network);
  Model model(network, CrossEntropy(), optimizer);
  Checkpoint checkpoint(
      {.save = {.folder = "/dev/null/nowhere", .prefix = "test"}, .every_epochs = 1});
  EXPECT_THAT([&] { model.train(1, part(), {checkpoint}); },
              ThrowsMessage<CheckpointError>(HasSubstr("/dev/null/nowhere")));
}

}  // namespace
}  // namespace trireme
