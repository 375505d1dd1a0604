// SPDX-License-Identifier: Apache-2.0
// Times training steps of a pipeline and prints the median and the peak of memory
// (bench/cases/pipeline.py). bench/peers/pipeline.py is the same in PyTorch.
#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/training_step.h>
#include <trireme/schedule/pictures/schedule_picture.h>

#include <CLI/CLI.hpp>
#include <bench/multi/beside.h>
#include <bench/multi/peak_memory.h>
#include <bench/multi/pipeline/prediction.h>
#include <bench/multi/pipeline/weights.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Options {
  std::string model = "gpt";
  std::string schedule = "1f1b";
  int stages = 0;
  int devices = 0;
  int micro_batches = 8;
  int passes = 1;
  int steps = 3;
  int warm_up = 3;
  int reports = 0;
  std::string trace;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of a pipeline.");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--model", options.model)->check(CLI::IsMember({"gpt", "resnet50"}));
  app.add_option("--schedule", options.schedule, "as in Plan::schedule");
  app.add_option("--stages", options.stages, "of all ranks together; 0: one a rank");
  app.add_option("--devices", options.devices,
                 "threads of one process, with a stage each; 0: ranks have them");
  app.add_option("--micro-batches", options.micro_batches, "of a pass");
  app.add_option("--passes", options.passes, "one after the other, each with its part of the batch")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--steps", options.steps, "steps that are timed, an odd number")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--warm-up", options.warm_up, "steps before those");
  app.add_option("--reports", options.reports, "steps of one pass after those, for a prediction");
  app.add_option("--trace", options.trace, "where a Chrome trace of the last of these goes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

// A model, which has memory for this rank's stages alone, and the batch that it trains on again and
// again.
struct Training {
  std::shared_ptr<torch::nn::Module> module;
  trireme::graph::Forward forward;
  std::vector<torch::Tensor> batch;
  /// By the number of stages: the modules that begin them, from the second on.
  std::map<int, std::vector<std::string>> cuts;
};

Training train_gpt() {
  constexpr std::int64_t kRows = 16;
  const models::GPTOptions options = {
      .vocabulary = 8192, .sequence = 128, .hidden = 256, .layers = 8, .heads = 4};
  auto net = trireme::deferred([&] {
    models::GPT made(options);
    bench::fill(*made);
    return made;
  });
  const auto tokens = torch::randint(options.vocabulary, {kRows, options.sequence + 1},
                                     bench::numbers(0), torch::kInt64);
  return {
      .module = net.ptr(),
      .forward = [net](const std::vector<torch::Tensor>& in) mutable -> std::vector<torch::Tensor> {
        return {torch::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), in[1].flatten())};
      },
      .batch = {tokens.narrow(1, 0, options.sequence).contiguous(),
                tokens.narrow(1, 1, options.sequence).contiguous()},
      .cuts = {{2, {"blocks.5"}}, {4, {"blocks.3", "blocks.6", "norm"}}}};
}

Training train_resnet50() {
  constexpr std::int64_t kRows = 16;
  constexpr std::int64_t kClasses = 1000;
  constexpr std::int64_t kPixels = 112;
  auto net = trireme::deferred([] {
    auto made = models::resnet50(kClasses);
    bench::fill(*made);
    return made;
  });
  return {
      .module = net.ptr(),
      .forward = [net](const std::vector<torch::Tensor>& in) mutable -> std::vector<torch::Tensor> {
        return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
      },
      .batch = {torch::randn({kRows, 3, kPixels, kPixels}, bench::numbers(0)),
                torch::randint(kClasses, {kRows}, bench::numbers(1), torch::kInt64)},
      .cuts = {{2, {"layer3.2"}}, {4, {"layer2.1", "layer3.2", "layer4"}}}};
}

// Of one of so many passes whose gradients add up.
trireme::graph::Forward part_of(trireme::graph::Forward forward, int passes) {
  if (passes == 1) return forward;
  return [forward = std::move(forward), passes](const std::vector<torch::Tensor>& in) {
    auto results = forward(in);
    results[0] = results[0] / passes;
    return results;
  };
}

// The batches of the passes.
std::vector<std::vector<torch::Tensor>> parts_of(const std::vector<torch::Tensor>& batch,
                                                 int passes) {
  std::vector<std::vector<torch::Tensor>> parts(static_cast<std::size_t>(passes));
  for (const torch::Tensor& whole : batch) {
    const auto pieces = whole.chunk(passes);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(pieces.at(i));
  }
  return parts;
}

trireme::Plan plan_of(const Options& options, const Training& training, int ranks) {
  trireme::Plan plan;
  if (options.devices == 0) plan.mesh = {{trireme::kStageAxis, ranks}};
  plan.schedule = options.schedule;
  plan.micro_batches = options.micro_batches;
  const int stages = options.stages > 0 ? options.stages : std::max(ranks, options.devices);
  if (stages == 1) return plan;
  for (const std::string& module : training.cuts.at(stages)) {
    plan.stages.emplace_back(module, static_cast<int>(plan.stages.size()) + 1);
  }
  return plan;
}

// A rank that has unmapped shared memory leaves the others a greater share of it: all look at once.
std::int64_t end_stretch(bench::PeakMemory& memory, const trireme::World& world) {
  trireme::comm::barrier(world.group);
  const std::int64_t bytes = memory.end_stretch();
  trireme::comm::barrier(world.group);
  return bytes;
}

// In milliseconds.
nlohmann::json to_json(const trireme::schedule::Times& times) {
  nlohmann::json stages;
  for (const auto& stage : times.stages) {
    stages.push_back({{"forward", stage.forward},
                      {"backward", stage.backward.value_or(0)},
                      {"backward_input", stage.backward_input},
                      {"backward_weight", stage.backward_weight},
                      {"optimizer", stage.step}});
  }
  return {{"stages", stages},
          {"communication", times.communication},
          {"send", times.send},
          {"receive", times.receive}};
}

class Trainer {
 public:
  Trainer(const Options& options, const trireme::World& world)
      : options_(options),
        world_(world),
        training_(options.model == "gpt" ? train_gpt() : train_resnet50()),
        parts_(parts_of(training_.batch, options.passes)),
        optimizer_(training_.module->parameters(), bench::kLearningRate) {
    const auto forward = part_of(training_.forward, options.passes);
    const trireme::Plan plan = plan_of(options, training_, world.size);
    pipeline_.emplace(
        *training_.module, forward, plan, world.group,
        trireme::TrainingStepOptions{.devices = std::vector<at::Device>(
                                         static_cast<std::size_t>(options.devices), at::kCPU)});
  }

  double step() {
    optimizer_.zero_grad();
    double loss = 0;
    for (const auto& part : parts_) {
      loss += pipeline_->step(part).loss.item<double>();
    }
    optimizer_.step();
    return loss;
  }

  // What the timeline of the schedule says that a step takes, in seconds, and from which times.
  void predict(nlohmann::json& record) {
    std::vector<trireme::pipeline::StepReport> reports;
    std::vector<double> own;
    for (int number = 0; number < options_.reports; ++number) {
      double milliseconds = 1e3 * bench::seconds_of([&] { optimizer_.zero_grad(); }, 1);
      reports.push_back(pipeline_->step(parts_.front(), {.report = true}).report.value());
      milliseconds += 1e3 * bench::seconds_of([&] { optimizer_.step(); }, 1);
      own.push_back(milliseconds);
    }
    std::vector<std::vector<double>> optimizer_times;
    for (const auto& text :
         trireme::comm::all_gather_text(nlohmann::json(own).dump(), world_.group)) {
      optimizer_times.push_back(nlohmann::json::parse(text).get<std::vector<double>>());
    }
    const auto times = bench::measured_times(pipeline_->schedule(), reports, optimizer_times);
    record["predicted_time"] = 1e-3 * bench::predicted_step_time(pipeline_->schedule(), times);
    record["times"] = to_json(times);
    if (!options_.trace.empty() && world_.is_first()) {
      std::ofstream(options_.trace) << trireme::schedule::to_trace(reports.back().timeline);
    }
  }

 private:
  Options options_;
  trireme::World world_;
  Training training_;
  std::vector<std::vector<torch::Tensor>> parts_;
  torch::optim::SGD optimizer_;
  std::optional<trireme::TrainingStep> pipeline_;
};

nlohmann::json measure(const Options& options, const trireme::World& world) {
  bench::PeakMemory memory;
  Trainer trainer(options, world);
  nlohmann::json record;
  for (int number = 0; number < options.warm_up; ++number) {
    record["losses"].push_back(trainer.step());
  }
  const auto starting_memory = end_stretch(memory, world);
  std::vector<double> seconds;
  for (int number = 0; number < options.steps; ++number) {
    seconds.push_back(bench::seconds_of([&] { trainer.step(); }, 1));
  }
  record["step_time"] = bench::median(seconds);
  record["step_memory"] = end_stretch(memory, world);
  record["peak_memory"] = std::max(starting_memory, record["step_memory"].get<std::int64_t>());
  if (options.reports > 0) trainer.predict(record);
  return record;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const auto world = trireme::init();
  auto record = measure(options, world);
  for (const auto& text : trireme::comm::all_gather_text(record.dump(), world.group)) {
    const auto other = nlohmann::json::parse(text);
    for (const char* name : {"peak_memory", "step_memory"}) {
      if (record[name] < other[name]) record[name] = other[name];
    }
  }
  if (world.is_first()) std::cout << record << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
