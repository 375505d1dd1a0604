// SPDX-License-Identifier: Apache-2.0
// Which rows the ranks of a model read, and what it says where they are not those of the plan.
#include <trireme/base/error.h>
#include <trireme/train/model.h>

#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/unit/train/small_problem.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Random numbers of LibTorch are drawn before the ranks start: its generator is shared by threads.
class DataParts : public ::testing::Test {
 protected:
  // What training by `ranks` ranks throws on each, as text; empty where it ends well.
  std::vector<std::string> errors_of(
      int ranks, const ModelOptions& options,
      const std::function<data::DataLoader(const comm::Group&)>& data_of) {
    std::vector<torch::nn::Sequential> networks;
    for (int rank = 0; rank < ranks; ++rank) networks.push_back(testing::small_network());
    std::vector<std::string> errors;
    for (const std::exception_ptr& thrown :
         testing::run_ranks_catching(ranks, [&](const comm::Group& group) {
           const auto& network = networks.at(static_cast<std::size_t>(group.rank()));
           auto optimizer = testing::momentum(*network);
           ModelOptions own = options;
           own.group = group;
           Model model(network, CrossEntropy(), optimizer, own);
           model.train(1, data_of(group));
         })) {
      errors.push_back(thrown ? testing::message_of<Error>(thrown) : "");
    }
    return errors;
  }

  // Made once: threads that draw from one generator at a time would get different values.
  data::DataLoader points_ = data::DataLoader(testing::points(32)).batch(4);
  data::DataLoader nine_points_ = data::DataLoader(testing::points(9)).batch(4);
};

TEST_F(DataParts, AreTakenByTheModelItself) {
  std::array<torch::nn::Sequential, 4> networks{testing::small_network(), testing::small_network(),
                                                testing::small_network(), testing::small_network()};
  for (const bool manual : {false, true}) {
    testing::run_ranks(2, [&](const comm::Group& group) {
      auto& network = networks.at(static_cast<std::size_t>(group.rank()) + (manual ? 2 : 0));
      auto optimizer = testing::momentum(*network);
      Model model(network, CrossEntropy(), optimizer, {.group = group});
      data::DataLoader data = points_;
      data.shuffle(3);
      if (manual) data.shard({.index = group.rank(), .count = 2});
      const History history = model.train(2, data);
      EXPECT_EQ(history.epochs.back().samples, 32);
      EXPECT_EQ(model.progress().global_step, 8);
      EXPECT_EQ(model.evaluate(nine_points_).samples, 9);
      EXPECT_EQ(model.predict(data).size(0), manual ? 16 : 32);
    });
  }
  EXPECT_TRUE(testing::same_parameters(*networks[0], *networks[1]));
  EXPECT_TRUE(testing::same_parameters(*networks[0], *networks[2]));
}

// Two ranks that train on the same rows take twice the time for the same steps.
TEST_F(DataParts, MustDifferAlongData) {
  const auto whole = [&](const comm::Group& /*group*/) {
    data::DataLoader data = points_;
    return data.shard({.index = 0, .count = 1});
  };
  for (const std::string& error : errors_of(2, {}, whole)) {
    EXPECT_THAT(error, AllOf(HasSubstr("ranks 0 and 1, which are to train on different parts"),
                             HasSubstr("have read the same rows in epoch 1, step 2"),
                             HasSubstr("trireme::data_part(plan, group)")));
  }
  for (const std::string& error : errors_of(2, {.shards_data = false}, whole)) {
    EXPECT_EQ(error, "");
  }
}

TEST_F(DataParts, MustBeTheSameWhereRanksWorkTogether) {
  Plan plan{.mesh = {{"tensor", 2}}};
  plan.layouts = {{"0.*", {{"tensor", Shard{0}}}}, {"3.weight", {{"tensor", Shard{1}}}}};
  const auto by_rank = [&](const comm::Group& group) {
    data::DataLoader data = points_;
    return data.shard({.index = group.rank(), .count = 2});
  };
  for (const std::string& error : errors_of(2, {.plan = plan}, by_rank)) {
    EXPECT_THAT(error, AllOf(HasSubstr("have read different batches"), HasSubstr("data_part")));
  }
  // From the second batch on.
  const auto later = [&](const comm::Group& group) {
    data::DataLoader data = points_;
    const auto calls = std::make_shared<int>(0);
    return data.map_batch(
        [calls, rank = group.rank()](data::Batch batch, data::Random& /*random*/) {
          if (++*calls == 2 && rank == 1) batch.columns[0] = batch.columns[0] + 1;
          return batch;
        });
  };
  for (const std::string& error : errors_of(2, {.plan = plan}, later)) {
    EXPECT_THAT(error, AllOf(HasSubstr("ranks 0 and 1"),
                             HasSubstr("which work on one part of the data together")));
  }
}

// Evaluations and predictions used to compute with halves of two batches.
TEST_F(DataParts, MustBeTheSameInEvaluationsAndPredictions) {
  ModelOptions options{.plan = {.mesh = {{"tensor", 2}}}};
  options.plan.layouts = {{"0.*", {{"tensor", Shard{0}}}}, {"3.weight", {{"tensor", Shard{1}}}}};
  using Use = std::function<void(Model&, const data::DataLoader&)>;
  const std::vector<Use> uses = {
      [](Model& model, const auto& data) { model.evaluate(data); },
      [](Model& model, const auto& data) { model.predict(data); },
      [](Model& model, const auto& data) { model.predict(data.open(0)->next()->columns[0]); }};
  for (const Use& use : uses) {
    for (const bool differs : {false, true}) {
      std::vector<torch::nn::Sequential> networks;
      for (int rank = 0; rank < 2; ++rank) networks.push_back(testing::small_network());
      const auto thrown = testing::run_ranks_catching(2, [&](const comm::Group& group) {
        const auto& network = networks.at(static_cast<std::size_t>(group.rank()));
        auto optimizer = testing::momentum(*network);
        ModelOptions own = options;
        own.group = group;
        Model model(network, CrossEntropy(), optimizer, own);
        data::DataLoader data = points_;
        data.shard({.index = differs ? group.rank() : 0, .count = 2});
        use(model, data);
      });
      for (const std::exception_ptr& one : thrown) {
        if (!differs) {
          EXPECT_EQ(one, nullptr);
          continue;
        }
        ASSERT_NE(one, nullptr);
        EXPECT_THAT(testing::message_of<Error>(one),
                    AllOf(HasSubstr("have read different batches"), HasSubstr("data_part")));
      }
    }
  }
}

TEST_F(DataParts, ComeOfOneDataSet) {
  std::vector<data::DataLoader> sets;
  for (int rank = 0; rank < 2; ++rank) {
    const auto features = torch::randn({16, 4});
    sets.emplace_back(
        data::tensors({{"features", features}, {"label", features.narrow(1, 0, 3).argmax(1)}}));
    sets.back().batch(4);
  }
  const auto own = [&](const comm::Group& group) {
    return sets.at(static_cast<std::size_t>(group.rank()));
  };
  for (const std::string& error : errors_of(2, {}, own)) {
    EXPECT_THAT(error, AllOf(HasSubstr("ranks gave a model different data"),
                             HasSubstr("ModelOptions::shards_data"), Not(HasSubstr("\n\n"))));
  }
  for (const std::string& error : errors_of(2, {.shards_data = false}, own)) EXPECT_EQ(error, "");
  // The shuffle of each rank would be another, and parts of it no parts.
  const auto other_seeds = [&](const comm::Group& group) {
    data::DataLoader data = points_;
    return data.shuffle(static_cast<std::uint64_t>(group.rank()));
  };
  for (const std::string& error : errors_of(2, {}, other_seeds)) {
    EXPECT_THAT(error, HasSubstr("the same seed of shuffling"));
  }
}

// Data of ones, as programs that measure speed make it.
TEST_F(DataParts, MayHaveTheSameRowsWhereTheModelTakesThem) {
  const auto ones = [](const comm::Group& /*group*/) {
    return data::DataLoader(data::tensors({{"features", torch::ones({16, 4})},
                                           {"label", torch::ones({16}, torch::kLong)}}))
        .batch(4);
  };
  for (const std::string& error : errors_of(2, {}, ones)) EXPECT_EQ(error, "");
}

TEST_F(DataParts, AreShardedOnAllRanksOrNone) {
  const auto one = [&](const comm::Group& group) {
    data::DataLoader data = points_;
    if (group.rank() == 1) data.shard({.index = 1, .count = 2});
    return data;
  };
  for (const std::string& error : errors_of(2, {}, one)) {
    EXPECT_THAT(error, HasSubstr("shard() was called for the data of rank 1, and not for that of "
                                 "rank 0"));
  }
}

TEST_F(DataParts, NeedABatchSize) {
  data::DataLoader whole(testing::points(8));
  const auto rows = [&](const comm::Group& /*group*/) { return whole; };
  for (const int ranks : {1, 2}) {
    for (const std::string& error : errors_of(ranks, {}, rows)) {
      EXPECT_THAT(error, AllOf(HasSubstr("has no batch size"), HasSubstr("call batch()")));
    }
  }
}

}  // namespace
}  // namespace trireme
