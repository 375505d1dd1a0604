// SPDX-License-Identifier: Apache-2.0
// Model with an automatic plan: every plan that is found trains to the losses of one process.
#include <tests/ranks/train/automatic.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/plan/plan_config.h>
#include <trireme/train/checkpoints.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>

namespace trireme {
namespace {

using test::kRowsOfStep;
using test::kSteps;
using test::Subject;
using test::subject;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

// Plans are kept in a folder of the test.
class AutomaticPlan : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }
  void TearDown() override {
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("TRIREME_PLAN");
  }

  std::vector<std::filesystem::path> kept_plans() const {
    std::vector<std::filesystem::path> files;
    const auto folder = folder_.path() / "trireme" / "plans";
    if (!std::filesystem::exists(folder)) return files;
    for (const auto& file : std::filesystem::directory_iterator(folder)) files.push_back(file);
    return files;
  }

  const test::TemporaryFolder folder_;
};

data::DataLoader loader_of(const Subject& subject) {
  data::DataLoader loader(data::tensors({{"input", subject.inputs}, {"target", subject.targets}}));
  loader.shuffle(5).batch(kRowsOfStep);
  return loader;
}

struct Training {
  std::vector<float> losses;  // of this rank
  Plan plan;
};

struct Program {
  Plan plan = Plan::automatic();
  std::int64_t epochs = 2;
  std::filesystem::path resume{};
  std::filesystem::path save_to{};
  std::filesystem::path* saved = nullptr;  // not null: saves to save_to, and is told where
};

Training train(const Subject& subject, const comm::Group& group, const Program& program = {}) {
  torch::optim::AdamW optimizer(subject.module->parameters(), torch::optim::AdamWOptions(1e-2));
  Model model(subject.loss, *subject.module, optimizer, {.group = group, .plan = program.plan});
  if (!program.resume.empty()) model.resume(program.resume);
  Training run;
  LambdaCallback record(
      {.step_end = [&](const StepEndContext& step) { run.losses.push_back(step.loss); }});
  const data::DataLoader loader = loader_of(subject);
  model.fit(loader, loader,
            {.epochs = program.epochs, .callbacks = {record}, .validate_every_epochs = 0});
  if (program.saved != nullptr) {
    const auto path = model.save({.folder = program.save_to});
    if (group.rank() == 0) *program.saved = path;
  }
  run.plan = model.options().plan;
  return run;
}

// The mean over the parts of the data, by step. Ranks of one part have the same losses.
std::vector<double> mean_losses(const std::vector<Training>& runs) {
  const Plan& plan = runs.front().plan;
  std::vector<double> sums(runs.front().losses.size(), 0);
  const auto parts = data_ranks(plan, static_cast<int>(runs.size()));
  const auto share = static_cast<double>(runs.size());
  for (const Training& run : runs) {
    EXPECT_EQ(to_toml(run.plan), to_toml(plan));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += run.losses[i] / share;
  }
  EXPECT_GE(parts, 1);
  return sums;
}

std::vector<Training> train_together(const std::string& name, int ranks,
                                     const Program& program = {}) {
  std::vector<Training> runs(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const comm::Group& group) {
    runs[static_cast<std::size_t>(group.rank())] = train(subject(name), group, program);
  });
  return runs;
}

// Sums are added in another order than in one process, so losses differ in their last digits.
void expect_losses_of_one_process(const std::string& name, int ranks, const Program& program) {
  Program alone = program;
  alone.plan = Plan();
  const std::vector<double> expected = mean_losses(train_together(name, 1, alone));
  const std::vector<Training> runs = train_together(name, ranks, program);
  SCOPED_TRACE(name + " on " + std::to_string(ranks) + " ranks by\n" +
               to_string(runs.front().plan));
  EXPECT_EQ(runs.front().plan.mode, PlanMode::kManual);
  const std::vector<double> losses = mean_losses(runs);
  ASSERT_EQ(losses.size(), expected.size());
  EXPECT_NE(expected.back(), expected.front());
  constexpr double kBound = 2e-4;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], kBound * expected[i]) << "step " << i;
  }
}

constexpr const char* kNetworks[] = {"gpt", "llama", "bert", "mixture", "vit", "u-net", "lstm"};

TEST_F(AutomaticPlan, TrainsToTheLossesOfOneProcess) {
  int ranks = 1;
  for (const char* name : kNetworks) {
    ranks = ranks % 4 + 1;
    expect_losses_of_one_process(name, ranks, {});
  }
}

TEST_F(AutomaticPlan, KeepsItsConstraints) {
  const std::vector<std::vector<std::string>> all = {{"pipe=2", "data=1"},
                                                     {"tensor=2", "micro_batches=2"},
                                                     {"data=2", "zero_level=3"},
                                                     {"data=2", "rows=3", "recompute=repeated"}};
  for (const std::vector<std::string>& constraints : all) {
    expect_losses_of_one_process("gpt", 2, {.plan = Plan::automatic(constraints)});
  }
  const Training run =
      train_together("gpt", 2, {.plan = Plan::automatic({"pipe=2", "micro_batches=4"})}).front();
  EXPECT_EQ(stage_ranks(run.plan), 2);
  EXPECT_EQ(run.plan.micro_batches, 4);
}

// With TRIREME_EXHAUSTIVE set (label `slow`), every network on every number of ranks.
TEST_F(AutomaticPlan, TrainsNetworksUnderEachConstraint) {
  const bool is_exhaustive = Environment::of_process().has("TRIREME_EXHAUSTIVE");
  const auto names = is_exhaustive ? std::span(kNetworks) : std::span(kNetworks).last(1);
  const std::vector<int> all_ranks = {2, 3, 4, 6, 8};
  for (const char* name : names) {
    for (const int ranks : std::span(all_ranks).first(is_exhaustive ? all_ranks.size() : 1)) {
      for (const std::vector<std::string>& constraints :
           std::vector<std::vector<std::string>>{{}, {"data=1"}, {"pipe=1"}, {"tensor=1"}}) {
        SCOPED_TRACE(constraints.empty() ? "" : constraints.front());
        try {
          expect_losses_of_one_process(name, ranks, {.plan = Plan::automatic(constraints)});
        } catch (const UsageError& error) {
          // The constraint leaves no plan; anything else is a failure.
          EXPECT_THAT(error.what(), HasSubstr("is left"));
          EXPECT_FALSE(constraints.empty()) << error.what();
        }
      }
    }
  }
}

// Batch norm over all ranks has the statistics of one process, as long as micro-batches do not
// divide them.
TEST_F(AutomaticPlan, KeepsTheSettingsOfTheProgram) {
  Plan plan = Plan::automatic({"pipe=1", "tensor=1", "micro_batches=1", "recompute=none"});
  plan.sync_batch_norm = true;
  for (const int ranks : {2, 3}) expect_losses_of_one_process("resnet", ranks, {.plan = plan});
}

TEST_F(AutomaticPlan, IsKeptForTheNextRun) {
  const std::vector<Training> first = train_together("gpt", 2);
  ASSERT_EQ(kept_plans().size(), 1U);
  // What is kept is taken, as a change of it shows.
  const std::filesystem::path file = kept_plans().front();
  std::string text = test::read_file(file);
  const std::string before = "bucket_bytes = 0";
  ASSERT_NE(text.find(before), std::string::npos);
  text.replace(text.find(before), before.size(), "bucket_bytes = 4096");
  test::write_file(file, text);
  EXPECT_EQ(train_together("gpt", 2).front().plan.bucket_bytes, 4096);
  // Another batch, other ranks, another network and other constraints are searched for.
  train_together("gpt", 3);
  train_together("llama", 2);
  train_together("gpt", 2, {.plan = Plan::automatic({"tensor=1"})});
  EXPECT_EQ(kept_plans().size(), 4U);
  for (const std::string damaged : {"", "rows = \"many\"", "rows = 24\nstep_seconds = 1.0\n"}) {
    test::write_file(file, damaged);
    EXPECT_EQ(to_toml(train_together("gpt", 2).front().plan), to_toml(first.front().plan));
  }
  test::write_file(file, text.replace(text.find("[\"pipe=2"), 8, "[\"pipe=4"));
  EXPECT_EQ(to_toml(train_together("gpt", 2).front().plan), to_toml(first.front().plan));
}

TEST_F(AutomaticPlan, LoadsTheCheckpointOfAnotherPlan) {
  std::filesystem::path saved;
  train_together("gpt", 2,
                 {.plan = Plan::automatic({"pipe=2"}),
                  .epochs = 1,
                  .save_to = folder_.path(),
                  .saved = &saved});
  const Program rest = {.epochs = 2, .resume = saved};  // of which one is left
  const std::vector<double> whole = mean_losses(train_together("gpt", 1, {.plan = Plan()}));
  const std::vector<double> second = mean_losses(train_together("gpt", 3, rest));
  ASSERT_EQ(second.size(), static_cast<std::size_t>(kSteps));
  for (std::size_t i = 0; i < second.size(); ++i) {
    EXPECT_NEAR(second[i], whole[i + kSteps], 1e-3) << i;
  }
}

TEST_F(AutomaticPlan, IsAskedForByTheEnvironment) {
  ::setenv("TRIREME_PLAN", "auto", 1);
  const Program program = {.plan = Plan{.bucket_bytes = 2048}};
  const Plan found = train_together("gpt", 2, program).front().plan;
  EXPECT_EQ(found.mode, PlanMode::kManual);
  EXPECT_FALSE(found.mesh.empty());
  EXPECT_EQ(found.bucket_bytes, 2048);
  const std::filesystem::path file = folder_.path() / "plan.toml";
  test::write_file(file, "zero_level = 2\n");
  ::setenv("TRIREME_PLAN", file.c_str(), 1);
  EXPECT_EQ(train_together("gpt", 2, program).front().plan.zero_level, 2);
}

TEST_F(AutomaticPlan, IsFoundBeforeAnEvaluation) {
  run_ranks(2, [](const comm::Group& group) {
    const Subject gpt = subject("gpt");
    torch::optim::SGD optimizer(gpt.module->parameters(), 0.1);
    Model model(gpt.loss, *gpt.module, optimizer, {.group = group, .plan = Plan::automatic()});
    const data::DataLoader loader = loader_of(gpt);
    try {
      (void)model.evaluate(loader);
      ADD_FAILURE();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the plan of this model is automatic, and it has not"));
    }
    model.find_plan(loader);
    EXPECT_GT(model.evaluate(loader).loss, 0);
    model.fit(loader, loader);
  });
}

// A model of the GPT with a plan that is automatic, and its data.
struct Planned {
  explicit Planned(const comm::Group& group, const Plan& plan = Plan::automatic())
      : model(gpt.loss, *gpt.module, optimizer, {.group = group, .plan = plan}) {}
  Subject gpt = subject("gpt");
  torch::optim::AdamW optimizer{gpt.module->parameters(), torch::optim::AdamWOptions(1e-2)};
  Model model;
  data::DataLoader loader = loader_of(gpt);
};

// Nothing trains with other values than those of the checkpoint.
TEST_F(AutomaticPlan, LoadsACheckpointAgainThatCouldNotBeRead) {
  std::filesystem::path saved;
  train_together("gpt", 2, {.epochs = 1, .save_to = folder_.path(), .saved = &saved});
  const auto aside = saved.parent_path() / "aside";
  run_ranks(2, [&](const comm::Group& group) {
    Planned planned(group);
    planned.model.resume(saved);
    comm::barrier(group);
    if (group.rank() == 0) std::filesystem::rename(saved, aside);
    comm::barrier(group);
    EXPECT_THROW(planned.model.evaluate(planned.loader), Error);
    EXPECT_THROW(planned.model.fit(planned.loader, planned.loader), Error);
    comm::barrier(group);
    if (group.rank() == 0) std::filesystem::rename(aside, saved);
    comm::barrier(group);
    const double loss = planned.model.evaluate(planned.loader).loss;
    Planned resumed(group);
    resumed.model.resume(saved);
    resumed.model.find_plan(resumed.loader);
    EXPECT_EQ(loss, resumed.model.evaluate(resumed.loader).loss);
  });
}

TEST_F(AutomaticPlan, DoesNotShardOptimizersThatCannotBe) {
  run_ranks(2, [](const comm::Group& group) {
    const Subject gpt = subject("gpt");
    torch::optim::LBFGS optimizer(gpt.module->parameters(), torch::optim::LBFGSOptions(0.1));
    Model model(gpt.loss, *gpt.module, optimizer,
                {.group = group, .plan = Plan::automatic({"data=2"})});
    model.find_plan(loader_of(gpt));
    EXPECT_EQ(model.options().plan.zero_level, 0);
  });
}

TEST_F(AutomaticPlan, DividesTheDataOfEveryTraining) {
  run_ranks(2, [](const comm::Group& group) {
    Planned planned(group, Plan::automatic({"data=2"}));
    std::vector<std::int64_t> samples;
    LambdaCallback record(
        {.step_end = [&](const StepEndContext& step) { samples.push_back(step.all_samples); }});
    planned.model.train(1, planned.loader, {record});
    data::DataLoader half = planned.loader;
    planned.model.train(1, half.batch(kRowsOfStep / 2, data::LastBatch::kPad), {record});
    EXPECT_EQ(samples.front(), kRowsOfStep);
    EXPECT_EQ(samples.back(), kRowsOfStep / 2);
    data::DataLoader sharded = planned.loader;
    sharded.shard({.index = group.rank(), .count = 2});
    EXPECT_THROW(planned.model.train(1, sharded), UsageError);
    data::DataLoader odd = planned.loader;
    EXPECT_THROW(planned.model.train(1, odd.batch(7)), UsageError);
  });
}

TEST_F(AutomaticPlan, LeavesTheModuleInItsMode) {
  run_ranks(2, [](const comm::Group& group) {
    Planned planned(group);
    planned.gpt.module->eval();
    planned.model.find_plan(planned.loader);
    EXPECT_FALSE(planned.gpt.module->is_training());
  });
}

TEST_F(AutomaticPlan, IsForAllRanksOrForNone) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    const Planned planned(group, group.rank() == 0 ? Plan::automatic() : Plan());
  });
  for (const auto& each : thrown) {
    EXPECT_THAT(message_of<UsageError>(each), HasSubstr("mode of the plan"));
  }
}

std::string refusal(const Plan& plan, const std::function<data::DataLoader(int)>& loader = {}) {
  const auto thrown = run_ranks_catching(2, [&](const comm::Group& group) {
    const Subject gpt = subject("gpt");
    torch::optim::SGD optimizer(gpt.module->parameters(), 0.1);
    Model model(gpt.loss, *gpt.module, optimizer, {.group = group, .plan = plan});
    model.find_plan(loader ? loader(group.rank()) : loader_of(gpt));
  });
  EXPECT_TRUE(thrown[1]);
  return thrown[0] ? testing::message_of<UsageError>(thrown[0]) : "";
}

TEST_F(AutomaticPlan, RefusesWhatContradictsIt) {
  Plan with_mesh = Plan::automatic();
  with_mesh.mesh = {{"data", 2}};
  EXPECT_THAT(refusal(with_mesh), HasSubstr("the plan is automatic, and sets mesh"));
  EXPECT_THAT(refusal(Plan::automatic({"memory_gib=0.00001"})), HasSubstr("no plan fits"));
  EXPECT_THAT(refusal(Plan::automatic({"tensor=3"})), HasSubstr("2 ranks"));
  EXPECT_THAT(refusal(Plan::automatic(),
                      [](int rank) {
                        auto loader = loader_of(subject("gpt"));
                        return loader.shard({.index = rank, .count = 2});
                      }),
              HasSubstr("without shard()"));
  EXPECT_THAT(refusal(Plan{.constraints = {"pipe=1"}}), HasSubstr("its mode is manual"));
}

TEST_F(AutomaticPlan, IsNothingForParallelize) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    const Subject gpt = subject("gpt");
    (void)parallelize(*gpt.module, Plan::automatic(), group);
  });
  EXPECT_THAT(message_of<UsageError>(thrown[0]), HasSubstr("plan: mode is auto"));
}

}  // namespace
}  // namespace trireme
