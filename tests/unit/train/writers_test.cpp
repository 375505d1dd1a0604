// SPDX-License-Identifier: Apache-2.0
// What a training leaves in its folder. tests/unit/report has the exact bytes of the files.
#include <trireme/train/writers.h>

#include "tests/ranks/thread_ranks.h"
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>
#include <trireme/report/provenance.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/trace_writer.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::istringstream text(test::read_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::vector<Json> records_of(const std::filesystem::path& path) {
  std::vector<Json> records;
  for (const std::string& line : lines_of(path)) records.push_back(Json::parse(line));
  return records;
}

std::vector<std::string> kinds_of(const std::vector<Json>& records) {
  std::vector<std::string> kinds;
  for (const Json& record : records) kinds.push_back(record.at("kind").get<std::string>());
  return kinds;
}

class Writers : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  data::DataLoader data_ = testing::points(20).batch(4);  // 5 steps
  torch::nn::Sequential network_ = testing::small_network();
  torch::optim::SGD optimizer_ = testing::momentum(*network_);
  Model model_{network_, CrossEntropy(), optimizer_, {.clip_norm = 1}};
};

TEST_F(Writers, JsonlHasWhatHappenedInOrder) {
  JsonlWriter writer({.folder = folder_.path(),
                      .every_steps = 2,
                      .settings = {{"mine", "7"}},
                      .tokens_per_sample = 64});
  Checkpoint checkpoint({.save = {.folder = folder_.path()}, .every_epochs = 1});
  LambdaCallback logs({.step_end = [](const StepEndContext& step) {
    if (step.step == 1) step.run.log("early", 2);
  }});
  const History history =
      model_.fit(data_, data_, {.epochs = 1, .callbacks = {logs, writer, checkpoint}});
  const auto records = records_of(folder_ / "events-rank0.jsonl");
  EXPECT_THAT(kinds_of(records), ElementsAre("run", "step", "step", "step", "evaluation", "epoch",
                                             "checkpoint", "end"));
  const Json& run = records[0];
  EXPECT_EQ(run.at("format"), 1);
  EXPECT_EQ(run.at("steps_in_epoch"), 5);
  EXPECT_EQ(run.at("tokens_per_sample"), 64);
  EXPECT_EQ(run.at("settings").at("mine"), "7");
  EXPECT_EQ(run.at("settings").at("clip_norm"), "1");
  EXPECT_THAT(run.at("settings").at("optimizer").get<std::string>(), HasSubstr("SGD"));
  for (const char* key : {"trireme", "torch", "host", "pid", "cores", "threads", "device"}) {
    EXPECT_TRUE(run.at("environment").contains(key)) << key;
  }
  EXPECT_THAT(run.at("environment").at("command").get<std::string>(), HasSubstr("train_test"));
  EXPECT_EQ(run.at("environment").at("folder"), std::filesystem::current_path().string());
  const auto revision = report::git_revision(std::filesystem::current_path());
  EXPECT_EQ(run.at("environment").contains("git_revision"), revision.has_value());
  const Json& step = records[1];
  EXPECT_EQ(step.at("global_step"), 2);
  EXPECT_EQ(step.at("steps"), 2);
  EXPECT_EQ(step.at("samples"), 8);
  EXPECT_EQ(step.at("learning_rate"), 0.1);
  EXPECT_EQ(step.at("scalars").at("early"), 2);
  EXPECT_TRUE(step.contains("gradient_norm"));
  EXPECT_GT(step.at("memory_bytes"), 1000000);
  const Json& seconds = step.at("seconds");
  double sum = 0;
  for (const char* phase : {"data", "forward", "backward", "communication", "optimizer"}) {
    sum += seconds.at(phase).get<double>();
  }
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, seconds.at("total").get<double>());
  EXPECT_EQ(records[3].at("steps"), 1);  // what was left at the epoch's end
  EXPECT_FALSE(records[3].contains("scalars"));
  EXPECT_EQ(records[4].at("accuracy"), history.validations[0].evaluation.accuracy.value());
  EXPECT_EQ(records[5].at("loss"), history.epochs[0].loss);
  EXPECT_EQ(records[6].at("path"), (folder_ / "checkpoint-1_5").string());
  EXPECT_EQ(records[7].at("stopped"), false);
}

// Sets an environment variable for a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST_F(Writers, JsonlHasFlopsAndThePeakOfTheClusterInTheDtypeOfProducts) {
  const auto run_of = [&](const char* folder, const ModelOptions& options,
                          std::optional<double> flops) {
    JsonlWriter writer({.folder = folder_ / folder, .flops_per_sample = flops});
    Model model(network_, CrossEntropy(), optimizer_, options);
    model.train(1, data_, {writer});
    return records_of(folder_ / folder / "events-rank0.jsonl").front();
  };
  const Json plain = run_of("plain", {}, 800);
  EXPECT_EQ(plain.at("flops_per_sample"), 800);
  EXPECT_EQ(plain.at("dtype"), "float32");
  EXPECT_FALSE(plain.contains("peak_flops"));
  const Variable cluster("TRIREME_CLUSTER", "cpu");
  const Json described = run_of("described", {}, 800);
  EXPECT_EQ(described.at("peak_flops"), 0.08e12);
  EXPECT_EQ(described.at("environment").at("cluster"), "CPU hosts with two ranks");
  const Json half = run_of("half", {.autocast = at::kBFloat16}, 800);
  EXPECT_EQ(half.at("dtype"), "bfloat16");
  EXPECT_EQ(half.at("peak_flops"), 0.16e12);
  EXPECT_FALSE(run_of("without", {}, std::nullopt).contains("peak_flops"));
}

TEST_F(Writers, JsonlOfADtypeWithoutAPeakHasNoneAndWarns) {
  const Variable cluster("TRIREME_CLUSTER", "v100-32");
  JsonlWriter writer({.folder = folder_.path(), .flops_per_sample = 800});
  Model model(network_, CrossEntropy(), optimizer_, {.autocast = at::kBFloat16});
  ::testing::internal::CaptureStderr();
  model.train(1, data_, {writer});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the peak FLOP/s of this run are not recorded: device V100-32 has no peak "
                        "rate for products in bfloat16"));
  const Json run = records_of(folder_ / "events-rank0.jsonl").front();
  EXPECT_EQ(run.at("dtype"), "bfloat16");
  EXPECT_FALSE(run.contains("peak_flops"));
}

TEST_F(Writers, StepsStandForAllSinceTheOneBefore) {
  JsonlWriter all({.folder = folder_ / "all"});
  JsonlWriter some({.folder = folder_ / "some", .every_steps = 5});
  model_.train(1, data_, {all, some});
  const auto every = records_of(folder_ / "all" / "events-rank0.jsonl");
  const auto one = records_of(folder_ / "some" / "events-rank0.jsonl");
  EXPECT_THAT(kinds_of(one), ElementsAre("run", "step", "epoch", "end"));
  double loss = 0;
  double forward = 0;
  for (std::size_t i = 1; i <= 5; ++i) {
    loss += every[i].at("loss").get<double>();
    forward += every[i].at("seconds").at("forward").get<double>();
  }
  EXPECT_DOUBLE_EQ(one[1].at("loss").get<double>(), loss / 5);
  EXPECT_NEAR(one[1].at("seconds").at("forward").get<double>(), forward, 1e-9);
  EXPECT_EQ(one[1].at("samples"), 20);
}

TEST_F(Writers, AreReadableAtEveryMomentAndTellOfAFailure) {
  JsonlWriter writer({.folder = folder_.path()});
  CsvWriter csv({.folder = folder_.path()});
  LambdaCallback look({.step_end = [&](const StepEndContext& step) {
    const auto records = records_of(folder_ / "events-rank0.jsonl");
    EXPECT_EQ(records.back().at("global_step"), step.global_step);
    EXPECT_THAT(lines_of(folder_ / "metrics.csv"),
                SizeIs(static_cast<std::size_t>(step.global_step) + 1));
    if (step.global_step == 3) throw std::runtime_error("enough");
  }});
  EXPECT_THROW(model_.train(1, data_, {writer, csv, look}), std::runtime_error);
  auto records = records_of(folder_ / "events-rank0.jsonl");
  EXPECT_EQ(records.back().at("kind"), "failure");
  EXPECT_EQ(records.back().at("message"), "enough");
  EXPECT_EQ(records.back().at("global_step"), 3);

  // A second training goes on with the same files.
  model_.train(1, data_, {writer, csv});
  records = records_of(folder_ / "events-rank0.jsonl");
  EXPECT_EQ(std::ranges::count(kinds_of(records), "run"), 2);
  EXPECT_EQ(std::ranges::count(lines_of(folder_ / "metrics.csv"),
                               lines_of(folder_ / "metrics.csv").front()),
            1);
}

TEST_F(Writers, RefuseAnIntervalBelowOneAndAFolderThatCannotBe) {
  EXPECT_THAT([] { const CsvWriter writer({.folder = "x", .every_steps = 0}); },
              ThrowsMessage<UsageError>(HasSubstr("n = 0")));
  EXPECT_THAT([] { const JsonlWriter writer({.folder = "x", .tokens_per_sample = 0}); },
              ThrowsMessage<UsageError>(HasSubstr("tokens_per_sample is 0")));
  for (const double flops : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT([&] { const JsonlWriter writer({.folder = "x", .flops_per_sample = flops}); },
                ThrowsMessage<UsageError>(HasSubstr("flops_per_sample is ")));
  }
  JsonlWriter nowhere({.folder = "/dev/null/x"});
  TraceWriter no_trace({.folder = "/dev/null/x"});
  TensorBoardWriter no_scalars({.folder = "/dev/null/x"});
  const std::vector<Callback*> writers = {&nowhere, &no_trace, &no_scalars};
  for (Callback* writer : writers) {
    EXPECT_THAT([&] { model_.train(1, data_, {*writer}); },
                ThrowsMessage<ConfigError>(HasSubstr("/dev/null/x")));
  }
  EXPECT_EQ(model_.progress().global_step, 0);
  EXPECT_THROW(TraceWriter({.folder = "x", .num_steps = 0}), UsageError);
}

TEST_F(Writers, ATraceHasEveryPhaseOfTheStepsThatItIsAskedFor) {
  TraceWriter writer({.folder = folder_.path(), .first_step = 2, .num_steps = 2});
  model_.fit(data_, data_, {.callbacks = {writer}});
  for (const char* name : {"trace-rank0.json", "trace.json"}) {
    const Json events = Json::parse(test::read_file(folder_ / name));
    std::multiset<std::string> names;
    for (const Json& event : events) {
      if (event.at("ph") == "X") names.insert(event.at("name").get<std::string>());
    }
    EXPECT_EQ(names.count("step 1"), 0U);
    EXPECT_EQ(names.count("step 2") + names.count("step 3"), 2U);
    EXPECT_EQ(names.count("step 4"), 0U);
    EXPECT_EQ(names.count("evaluation"), 1U);
    for (const char* phase : {"data", "forward"}) EXPECT_EQ(names.count(phase), 2U) << phase;
    for (const char* phase : {"backward", "optimizer", "callbacks"}) {
      EXPECT_GE(names.count(phase), 2U) << phase;
    }
  }
}

// It used to end a training that was done.
TEST_F(Writers, ATraceThatCannotBePutTogetherIsAWarning) {
  std::filesystem::create_directory(folder_ / "trace.json");
  TraceWriter writer({.folder = folder_.path()});
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(model_.train(1, data_, {writer}).epochs, SizeIs(1));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the traces of all ranks were not put together"));
  EXPECT_GT(std::filesystem::file_size(folder_ / "trace-rank0.json"), 0U);
}

// Two ranks, which are threads and have one clock: an exchange of gradients has not ended on one
// before it has begun on the other.
TEST_F(Writers, EveryRankWritesItsOwnAndTracesAreOnOneClock) {
  std::array<torch::nn::Sequential, 2> networks{testing::small_network(), testing::small_network()};
  testing::run_ranks(2, [&](const comm::Group& group) {
    const auto& network = networks.at(static_cast<std::size_t>(group.rank()));
    auto optimizer = testing::momentum(*network);
    Model model(network, CrossEntropy(), optimizer, {.group = group});
    JsonlWriter jsonl({.folder = folder_.path()});
    CsvWriter csv({.folder = folder_.path()});
    TensorBoardWriter scalars({.folder = folder_.path()});
    TraceWriter trace({.folder = folder_.path()});
    data::DataLoader data = data_;
    data.shard({.index = group.rank(), .count = 2}).batch(2);
    model.train(1, data, {jsonl, csv, scalars, trace});
  });
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    files.insert(entry.path().filename().string().substr(0, 20));
  }
  EXPECT_THAT(files,
              ElementsAre("events-rank0.jsonl", "events-rank1.jsonl", "events.out.tfevents.",
                          "metrics.csv", "trace-rank0.json", "trace-rank1.json", "trace.json"));
  for (int rank = 0; rank < 2; ++rank) {
    const auto records = records_of(folder_ / join_message("events-rank", rank, ".jsonl"));
    EXPECT_EQ(records[0].at("rank"), rank);
    EXPECT_EQ(records[0].at("world_size"), 2);
    EXPECT_GT(records[1].at("seconds").at("communication"), 0);
    EXPECT_EQ(records[1].at("samples"), 2);
    EXPECT_EQ(records[1].at("all_samples"), 4);
    EXPECT_EQ(records[1].at("samples_per_second").get<double>(),
              4 / records[1].at("seconds").at("total").get<double>());
  }
  const Json events = Json::parse(test::read_file(folder_ / "trace.json"));
  std::map<std::pair<int, int>, std::pair<double, double>> steps;  // by step and rank
  double clock_error = -1;                                         // microseconds
  for (const Json& event : events) {
    const auto name = event.at("name").get<std::string>();
    if (name == "process_labels") {
      EXPECT_EQ(event.at("pid"), 1);
      clock_error = event.at("args").at("clock_error").get<double>();
    }
    if (!name.starts_with("step ")) continue;
    const auto begin = event.at("ts").get<double>();
    const auto step = event.at("args").at("step").get<int>();
    steps[{step, event.at("pid").get<int>()}] = {begin, begin + event.at("dur").get<double>()};
  }
  ASSERT_THAT(steps, SizeIs(10));
  ASSERT_GE(clock_error, 0);
  constexpr double kRounding = 0.01;
  for (int step = 1; step <= 5; ++step) {
    const auto& first = steps.at({step, 0});
    const auto& second = steps.at({step, 1});
    EXPECT_LT(first.first, second.second + clock_error + kRounding) << "step " << step;
    EXPECT_LT(second.first, first.second + clock_error + kRounding) << "step " << step;
  }
}

}  // namespace
}  // namespace trireme
