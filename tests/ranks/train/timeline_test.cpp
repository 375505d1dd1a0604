// SPDX-License-Identifier: Apache-2.0
// Measured timelines of pipelines that Model trains, and the page that shows them.
#include <trireme/base/error.h>
#include <trireme/report/page/page.h>
#include <trireme/train/pipeline_timeline_writer.h>
#include <trireme/train/writers.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <tests/ranks/train/in_stages.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::in_stages;
using test::kPerceptronStages;
using test::perceptron;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::run_ranks;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

// Trains an epoch of six steps and returns the losses of this rank.
std::vector<float> train(const Plan& plan, const comm::Group& group, Callbacks callbacks) {
  const auto network = perceptron();
  torch::optim::SGD optimizer(network->parameters(), 0.1);
  data::DataLoader data = test::rows_of(6 * 2 * 4 * data_ranks(plan, group.size()), {6});
  data.batch(4);
  Model model(network, CrossEntropy(), optimizer, {.group = group, .plan = plan});
  std::vector<float> losses;
  LambdaCallback record(
      {.step_end = [&](const StepEndContext& step) { losses.push_back(step.loss); }});
  callbacks.emplace_back(record);
  model.train(1, data, callbacks);
  return losses;
}

Plan two_stages(int along_data = 1) {
  Plan plan = in_stages(2, along_data, kPerceptronStages);
  plan.micro_batches = 2;
  return plan;
}

std::vector<std::string> timelines_in(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("pipeline")) files.push_back(name);
  }
  std::ranges::sort(files);
  return files;
}

TEST(PipelineTimelineWriter, WritesThePictureAndTheTraceOfTheChosenSteps) {
  for (const int along_data : {1, 2}) {
    const TemporaryFolder folder;
    run_ranks(2 * along_data, [&](const comm::Group& group) {
      PipelineTimelineWriter writer({.folder = folder.path(), .steps = {2, 5, 99}});
      JsonlWriter events({.folder = folder.path()});
      EXPECT_EQ(train(two_stages(along_data), group, {writer, events}),
                train(two_stages(along_data), group, {}));
    });
    EXPECT_THAT(timelines_in(folder.path()),
                ElementsAre("pipeline-step2.json", "pipeline-step2.svg", "pipeline-step5.json",
                            "pipeline-step5.svg"));
    const std::string svg = test::read_file(folder / "pipeline-step5.svg");
    EXPECT_THAT(svg, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    EXPECT_THAT(svg, HasSubstr("1f1b: 2 ranks, 2 micro-batches"));
    EXPECT_THAT(svg, EndsWith("</svg>\n"));
    std::multiset<std::string> actions;
    for (const auto& event :
         nlohmann::json::parse(test::read_file(folder / "pipeline-step5.json"))) {
      if (event.at("ph") != "X" || event.at("tid") != 1) continue;
      actions.insert(event.at("name").get<std::string>() + " of stage " +
                     std::to_string(event.at("args").at("stage").get<int>()));
    }
    for (const char* action : {"forward of stage 0", "forward of stage 1", "backward of stage 0",
                               "backward of stage 1"}) {
      EXPECT_EQ(actions.count(action), 2U) << action;
    }

    const report::RunLog run = report::read_run(folder.path());
    ASSERT_THAT(run.pipeline_pictures.shown, SizeIs(2));
    for (const report::PipelinePicture& step : run.pipeline_pictures.shown) {
      EXPECT_GT(step.milliseconds.value(), 0);
      EXPECT_GT(step.bubble.value(), 0);
      EXPECT_LT(step.bubble.value(), 1);
    }
    EXPECT_THAT(report::to_html(run), HasSubstr("<img alt=\"Timeline of step 5: "));
  }
}

TEST(PipelineTimelineWriter, WritesNothingWithoutStages) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    run_ranks(ranks, [&](const comm::Group& group) {
      PipelineTimelineWriter writer({.folder = folder.path(), .steps = {1, 2}});
      JsonlWriter events({.folder = folder.path()});
      train({.micro_batches = 2}, group, {writer, events});
    });
    EXPECT_THAT(timelines_in(folder.path()), IsEmpty());
    EXPECT_THAT(report::to_html(report::read_run(folder.path())), Not(HasSubstr("Pipeline")));
  }
}

TEST(PipelineTimelineWriter, RefusesStepsThatAreNoneAndAFolderThatCannotBe) {
  EXPECT_THAT(
      [] { PipelineTimelineWriter({.folder = "x", .steps = {}}); },
      ThrowsMessage<UsageError>(HasSubstr("PipelineTimelineWriterOptions::steps is empty")));
  EXPECT_THAT([] { PipelineTimelineWriter({.folder = "x", .steps = {3, 0}}); },
              ThrowsMessage<UsageError>(HasSubstr("PipelineTimelineWriterOptions::steps has step "
                                                  "0")));
  run_ranks(2, [&](const comm::Group& group) {
    PipelineTimelineWriter writer({.folder = "/dev/null/x"});
    EXPECT_THAT([&] { train(two_stages(), group, {writer}); },
                ThrowsMessage<TrainingError>(HasSubstr("/dev/null/x")));
  });
}

TEST(PipelineTimelineWriter, WarnsOfFilesThatCannotBeWritten) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "pipeline-step2.svg" / "x");
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](const comm::Group& group) {
    PipelineTimelineWriter writer({.folder = folder.path(), .steps = {2}});
    EXPECT_THAT(train(two_stages(), group, {writer}), SizeIs(6));
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the timeline of the pipeline in step 2 was not written: "));
}

// The ranks agree before a step, so that none waits for the times of one that does not measure.
TEST(MeasurePipeline, OfOneRankMeasuresThatStepOnAll) {
  for (const int asking : {0, 1, 3}) {
    run_ranks(4, [&](const comm::Group& group) {
      std::vector<std::int64_t> measured;
      LambdaCallback callback({.step_begin =
                                   [&](const StepContext& step) {
                                     const bool asks =
                                         group.rank() == asking && step.global_step % 3 == 1;
                                     if (asks) step.run.model.measure_pipeline();
                                   },
                               .step_end =
                                   [&](const StepEndContext& step) {
                                     if (!step.pipeline) return;
                                     measured.push_back(step.global_step);
                                     EXPECT_THAT(step.pipeline->report.timeline.ranks, SizeIs(2));
                                     EXPECT_EQ(step.pipeline->schedule.micro_batches, 2);
                                     EXPECT_THAT(step.pipeline->report.peak_bytes, SizeIs(2));
                                   }});
      train(two_stages(2), group, {callback});
      EXPECT_THAT(measured, ElementsAre(1, 4));
    });
  }
}

}  // namespace
}  // namespace trireme
