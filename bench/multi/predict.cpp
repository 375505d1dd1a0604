// SPDX-License-Identifier: Apache-2.0
// Predicts a training step, or runs it and measures the same figures (bench/cases/predict.py), or
// finds its plan (bench/cases/plan.py):
//
//   trireme run -n 2 -- bench_predict --model gpt --plan zero_level=2
//   bench_predict --model gpt --plan zero_level=2 --ranks 2 --predict cluster.toml
//   bench_predict --model gpt --rows 8 --ranks 2 --find cluster.toml --save plan.toml
#include <trireme/predict/predict.h>

#include <models/bert.h>
#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/base/config/configuration.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/plan/plan_config.h>
#include <trireme/search/search.h>

#include <CLI/CLI.hpp>
#include <bench/multi/peak_memory.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace {

// Counts what this thread has allocated and not freed: all of a step but buckets in shared memory.
class CountedMemory final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*memory*/, std::int64_t bytes, std::size_t /*total*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    const std::int64_t now = allocated_ += bytes;  // other threads free what this one has made
    std::int64_t seen = peak_;
    while (seen < now && !peak_.compare_exchange_weak(seen, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  // Returns the peak in bytes since the last call.
  std::int64_t end_stretch() { return peak_.exchange(allocated_); }

 private:
  std::atomic<std::int64_t> allocated_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
};

struct Options {
  std::string model = "mlp";
  std::vector<std::string> plan;
  std::string plan_file;
  std::string optimizer = "adam";
  std::string cluster;                   // not empty: predict
  std::string find;                      // not empty: find the plan on this cluster
  std::string save;                      // the file for it
  std::vector<std::string> constraints;  // of it
  std::int64_t rows = 0;                 // of a step over all ranks; 0: those of the model
  int ranks = 1;                         // of a prediction
  int steps = 9;
  int warm_up = 3;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Predicts or measures a training step.");
  app.add_option("--model", options.model)->check(CLI::IsMember({"mlp", "resnet", "gpt", "bert"}));
  app.add_option("--plan", options.plan, "settings of the plan");
  app.add_option("--plan-file", options.plan_file, "plan as TOML");
  app.add_option("--rows", options.rows, "rows of a step over all ranks");
  app.add_option("--find", options.find, "description of the cluster for which to find the plan");
  app.add_option("--save", options.save, "file for the plan that is found");
  app.add_option("--with", options.constraints, "constraints of the plan that is found");
  app.add_option("--optimizer", options.optimizer)->check(CLI::IsMember({"sgd", "adam"}));
  app.add_option("--predict", options.cluster, "description of the cluster");
  app.add_option("--ranks", options.ranks, "ranks of a prediction");
  app.add_option("--steps", options.steps, "steps that are timed, an odd number");
  app.add_option("--warm-up", options.warm_up, "steps before those");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

// A module with a batch, and how it is sharded over `tensor`.
struct Training {
  std::int64_t rows = 1;  // of a micro-batch
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const std::vector<torch::Tensor>&)> loss;
  std::function<std::vector<torch::Tensor>(std::int64_t rows)> batch;
  trireme::ParameterLayouts layouts;
};

Training train_mlp() {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t kWidth = 1024;
  torch::nn::Sequential net(torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                            torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                            torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                            torch::nn::Linear(kWidth, kWidth));
  return {.rows = kRows,
          .module = net.ptr(),
          .loss =
              [=](const std::vector<torch::Tensor>& in) mutable {
                return torch::cross_entropy_loss(net->forward(in[0]), in[1]);
              },
          .batch =
              [=](std::int64_t rows) {
                return std::vector{torch::randn({rows, kWidth}), torch::randint(kWidth, {rows})};
              },
          .layouts = trireme::join({trireme::column_parallel("0"), trireme::row_parallel("2"),
                                    trireme::column_parallel("4"), trireme::row_parallel("6")})};
}

Training train_resnet() {
  constexpr std::int64_t kRows = 16;
  constexpr std::int64_t kSize = 32;
  models::ResNet net(models::ResNetOptions{
      .stem = models::Stem::kSmall, .blocks = {2, 2, 2}, .width = 32, .classes = 10});
  return {.rows = kRows,
          .module = net.ptr(),
          .loss =
              [=](const std::vector<torch::Tensor>& in) mutable {
                return torch::cross_entropy_loss(net->forward(in[0]), in[1]);
              },
          .batch =
              [=](std::int64_t rows) {
                return std::vector{torch::randn({rows, 3, kSize, kSize}),
                                   torch::randint(10, {rows})};
              }};
}

template <typename Model>
Training train_tokens(Model net, std::int64_t vocabulary, std::int64_t sequence,
                      std::int64_t rows) {
  return {.rows = rows,
          .module = net.ptr(),
          .loss =
              [=](const std::vector<torch::Tensor>& in) mutable {
                return torch::cross_entropy_loss(net->forward(in[0]).flatten(0, 1),
                                                 in[1].flatten());
              },
          .batch =
              [=](std::int64_t count) {
                return std::vector{torch::randint(vocabulary, {count, sequence}),
                                   torch::randint(vocabulary, {count, sequence})};
              }};
}

Training train_gpt() {
  Training training = train_tokens(
      models::GPT(models::GPTOptions{
          .vocabulary = 4096, .sequence = 128, .hidden = 256, .layers = 6, .heads = 4}),
      4096, 128, 4);
  training.layouts = trireme::join(
      {trireme::vocabulary_parallel("token_embedding"),
       trireme::column_parallel("*.attention.input"), trireme::row_parallel("*.attention.output"),
       trireme::column_parallel("*.mlp_input"), trireme::row_parallel("*.mlp_output")});
  return training;
}

Training train_bert() {
  Training training = train_tokens(models::BERT(models::BERTOptions{.vocabulary = 4096,
                                                                    .sequence = 128,
                                                                    .hidden = 256,
                                                                    .layers = 4,
                                                                    .heads = 4,
                                                                    .dropout = 0}),
                                   4096, 128, 4);
  training.layouts = trireme::join({trireme::vocabulary_parallel("token_embedding"),
                                    {{"head_bias", {{"tensor", trireme::Shard{0}}}}},
                                    trireme::column_parallel("*.attention.[qkv]*"),
                                    trireme::row_parallel("*.attention.output"),
                                    trireme::column_parallel("*.mlp_input"),
                                    trireme::row_parallel("*.mlp_output")});
  return training;
}

Training make_training(const std::string& model) {
  if (model == "mlp") return train_mlp();
  if (model == "resnet") return train_resnet();
  if (model == "gpt") return train_gpt();
  return train_bert();
}

trireme::Plan plan_of(const Options& options, const Training& training, int ranks) {
  trireme::PlanSettings settings;
  trireme::config::Configuration configuration(settings);
  if (!options.plan_file.empty()) configuration.read_file(options.plan_file);
  for (const std::string& assignment : options.plan) configuration.set(assignment);
  trireme::Plan& plan = settings.plan;
  if (plan.mesh.empty()) plan.mesh = {{trireme::kDataAxis, ranks}};
  const bool is_tensor_parallel =
      std::ranges::find(plan.mesh, "tensor", &trireme::MeshAxis::name) != plan.mesh.end();
  if (is_tensor_parallel && plan.layouts.empty()) plan.layouts = training.layouts;
  return plan;
}

trireme::predict::Optimizer optimizer_of(const Options& options) {
  return options.optimizer == "adam" ? trireme::predict::Optimizer::kAdam
                                     : trireme::predict::Optimizer::kSgd;
}

nlohmann::json find(const Options& options) {
  const Training training = make_training(options.model);
  const auto cluster = trireme::cluster::read_cluster(options.find);
  trireme::search::Constraints constraints;
  for (const std::string& text : options.constraints) {
    trireme::search::add_constraint(constraints, text);
  }
  const trireme::search::SearchResult result = trireme::search::find_plan(
      {.module = *training.module,
       .forward = [&](const std::vector<torch::Tensor>& in) -> std::vector<torch::Tensor> {
         return {training.loss(in)};
       },
       .inputs = training.batch(training.rows),
       .rows = options.rows,
       .options = {.optimizer = optimizer_of(options)}},
      options.ranks, cluster, constraints);
  std::cerr << to_string(result);
  trireme::PlanSettings settings = {.plan = result.fastest().plan};
  trireme::config::Configuration(settings).save(options.save);
  return {{"plan_time", result.seconds},
          {"step_time", result.fastest().prediction.step_seconds},
          {"plan", trireme::search::summary_of(result)}};
}

nlohmann::json predict(const Options& options) {
  const Training training = make_training(options.model);
  const trireme::Plan plan = plan_of(options, training, options.ranks);
  const auto micro_batch = training.batch(training.rows);
  const auto cluster = trireme::cluster::read_cluster(options.cluster);
  const auto began = std::chrono::steady_clock::now();
  const auto prediction = trireme::predict::predict(*training.module, plan, cluster,
                                                    [&] { return training.loss(micro_batch); },
                                                    {.optimizer = optimizer_of(options)});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::cerr << trireme::predict::to_string(prediction);
  return {{"step_time", prediction.step_seconds},
          {"peak_memory", prediction.peak_memory()},
          {"resident_memory", prediction.peak_memory()},
          {"predict_time", took.count()}};
}

// Trains a small network once, so that what LibTorch and its kernels keep for themselves is there.
void warm_up_libtorch() {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3)),
                            torch::nn::BatchNorm2d(16), torch::nn::Flatten(),
                            torch::nn::Linear(16 * 30 * 30, 512), torch::nn::GELU(),
                            torch::nn::Linear(512, 512));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    torch::cross_entropy_loss(net->forward(torch::randn({16, 3, 32, 32})),
                              torch::zeros({16}, torch::kLong))
        .backward();
    optimizer.step();
  }
}

nlohmann::json measure(const Options& options, const trireme::World& world) {
  warm_up_libtorch();
  bench::PeakMemory memory;
  const std::int64_t shared = bench::PeakMemory::shared_memory();
  const auto counted = std::make_shared<CountedMemory>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, counted);
  torch::manual_seed(1);
  // A rank has memory for its own stages only.
  const Training training = trireme::deferred([&] { return make_training(options.model); });
  const trireme::Plan plan = plan_of(options, training, world.size);
  const std::int64_t rows = options.rows > 0 ? options.rows / data_ranks(plan, world.size)
                                             : plan.micro_batches * training.rows;
  const auto batch = training.batch(rows);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  constexpr double kRate = 1e-4;
  if (options.optimizer == "adam") {
    optimizer = std::make_unique<torch::optim::Adam>(training.module->parameters(),
                                                     torch::optim::AdamOptions(kRate));
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(training.module->parameters(),
                                                    torch::optim::SGDOptions(kRate));
  }
  trireme::TrainingStep step(
      *training.module,
      [&](const std::vector<torch::Tensor>& in) -> std::vector<torch::Tensor> {
        return {training.loss(in)};
      },
      plan, world.group);
  if (plan.zero_level > 0) step.shard(*optimizer);
  const auto run = [&] {
    optimizer->zero_grad();
    (void)step.step(batch);
    optimizer->step();
  };
  for (int number = 0; number < options.warm_up; ++number) run();
  trireme::comm::barrier(world.group);
  (void)memory.end_stretch();
  (void)counted->end_stretch();
  trireme::comm::barrier(world.group);
  std::vector<double> seconds;
  for (int number = 0; number < options.steps; ++number) {
    const auto began = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    seconds.push_back(took.count());
  }
  trireme::comm::barrier(world.group);
  const auto peak = memory.end_stretch();
  const auto allocated = counted->end_stretch() + bench::PeakMemory::shared_memory() - shared;
  trireme::comm::barrier(world.group);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, middle);
  return {{"step_time", *middle},
          {"peak_memory", static_cast<double>(allocated)},
          {"resident_memory", static_cast<double>(peak)}};
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  if (!options.find.empty()) {
    std::cout << find(options) << '\n';
    return 0;
  }
  if (!options.cluster.empty()) {
    std::cout << predict(options) << '\n';
    return 0;
  }
  const auto world = trireme::init();
  auto record = measure(options, world);
  // A step takes as long as on the slowest rank; memory is that of the rank that needs most.
  for (const auto& text : trireme::comm::all_gather_text(record.dump(), world.group)) {
    const auto other = nlohmann::json::parse(text);
    for (const char* name : {"step_time", "peak_memory", "resident_memory"}) {
      if (record[name] < other[name]) record[name] = other[name];
    }
  }
  if (world.is_first()) std::cout << record << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
