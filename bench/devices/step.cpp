// SPDX-License-Identifier: Apache-2.0
// Times training steps of a network on an accelerator: by a plain loop of LibTorch, and in each way
// that Trireme can train it in a world of the ranks that were started. Every way is measured in
// every round, so that what drifts on the machine touches all. Prints one line of JSON
// (tools/gpu/run).
#include <models/bert.h>
#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/comm/world.h>
#include <trireme/optim/autocast.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/training_step.h>
#include <trireme/train/monitors.h>

#include <CLI/CLI.hpp>
#include <bench/multi/beside.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

using Tensors = std::vector<torch::Tensor>;

// A network, the batch that it trains on again and again, and the loss of one batch.
struct Training {
  std::shared_ptr<torch::nn::Module> module;
  Tensors batch;
  std::function<torch::Tensor(const Tensors&)> loss;
  std::string blocks;  // the pattern of the modules that the way `recompute` recomputes
};

torch::Tensor random_labels(std::int64_t classes, at::IntArrayRef sizes, at::Device device) {
  return torch::randint(classes, sizes, torch::dtype(torch::kLong).device(device));
}

Training train_gpt(const models::GPTOptions& options, std::int64_t rows, at::Device device) {
  models::GPT net(options);
  const auto tokens = random_labels(options.vocabulary, {rows, options.sequence + 1}, device);
  return {.module = net.ptr(),
          .batch = {tokens.narrow(1, 0, options.sequence).contiguous(),
                    tokens.narrow(1, 1, options.sequence).contiguous()},
          .loss =
              [net](const Tensors& batch) mutable {
                return torch::cross_entropy_loss(net(batch[0]).flatten(0, 1), batch[1].flatten());
              },
          .blocks = "blocks.*"};
}

Training train_bert_large(std::int64_t rows, at::Device device) {
  const models::BERTOptions options = {
      .sequence = 512, .hidden = 1024, .layers = 24, .heads = 16, .dropout = 0};
  models::BERT net(options);
  return {.module = net.ptr(),
          .batch = {random_labels(options.vocabulary, {rows, options.sequence}, device),
                    random_labels(options.vocabulary, {rows, options.sequence}, device)},
          .loss =
              [net](const Tensors& batch) mutable {
                return torch::cross_entropy_loss(net(batch[0]).flatten(0, 1), batch[1].flatten());
              },
          .blocks = "layers.*"};
}

Training train_resnet50(std::int64_t rows, at::Device device) {
  auto net = models::resnet50();
  return {.module = net.ptr(),
          .batch = {torch::randn({rows, 3, 224, 224}, device), random_labels(1000, {rows}, device)},
          .loss =
              [net](const Tensors& batch) mutable {
                return torch::cross_entropy_loss(net(batch[0]), batch[1]);
              },
          .blocks = "layer*.*"};
}

const std::map<std::string, std::function<Training(at::Device)>>& models_by_name() {
  static const std::map<std::string, std::function<Training(at::Device)>> models = {
      {"resnet50", [](at::Device device) { return train_resnet50(64, device); }},
      {"gpt-125m", [](at::Device device) { return train_gpt({.tied = true}, 8, device); }},
      {"gpt-1.3b",
       [](at::Device device) {
         return train_gpt({.hidden = 2048, .layers = 24, .heads = 16, .tied = true}, 4, device);
       }},
      {"bert-large", [](at::Device device) { return train_bert_large(8, device); }},
      {"gpt-tiny",
       [](at::Device device) {
         return train_gpt(
             {.vocabulary = 512, .sequence = 64, .hidden = 64, .layers = 2, .heads = 2}, 2, device);
       }},
  };
  return models;
}

constexpr const char* kDistributed = "distributed tensors";

// How a way of training prepares the module. `plain` uses LibTorch alone.
struct Way {
  trireme::Plan plan;
  bool is_recorded = false;  // by a TrainingStep
};

std::map<std::string, Way> ways_of(const Training& training, int ranks) {
  std::map<std::string, Way> ways;
  ways["data parallel"] = {};
  for (const int level : {1, 2, 3}) {
    ways["zero " + std::to_string(level)].plan.zero_level = level;
  }
  ways["zero 3, whole in backward"].plan = {.zero_level = 3, .gathered_buckets = 0};
  ways["optimizer offloaded"].plan = {.zero_level = 1, .offload_optimizer = true};
  ways[kDistributed].plan = {.mesh = {{"data", 1}, {"tensor", ranks}},
                             .layouts = {{"*", {{"tensor", trireme::Replicate{}}}}}};
  ways["recorded"].is_recorded = true;
  ways["recompute"] = {.plan = {.recompute = {training.blocks}}, .is_recorded = true};
  return ways;
}

// Half precision for a forward pass, where it is asked for.
class Precision {
 public:
  Precision(at::Device device, const std::string& name) {
    if (name == "bf16") guard_.emplace(device.type(), at::kBFloat16);
  }

 private:
  std::optional<trireme::Autocast> guard_;
};

struct Options {
  std::string model;
  std::string precision = "bf16";
  std::vector<std::string> ways;
  int rounds = 3;
  int steps = 5;
  int warm_up = 3;
};

// Returns the allocator of the device's memory if it counts what it gives.
c10::DeviceAllocator* counting_allocator(at::Device device) {
  if (device.is_cpu()) return nullptr;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

void wait_for(at::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

// A network on the device, with its initial values in the memory of the host.
class Prepared {
 public:
  Prepared(const Options& options, at::Device device) {
    torch::manual_seed(7);
    training_ = models_by_name().at(options.model)(device);
    for (const torch::Tensor& tensor : tensors()) initial_.push_back(tensor.detach().clone());
    training_.module->to(device);
  }

  Training& with_initial_values() {
    const torch::NoGradGuard no_grad;
    const std::vector<torch::Tensor> all = tensors();
    for (std::size_t i = 0; i < all.size(); ++i) all[i].copy_(initial_[i]);
    training_.module->zero_grad();
    return training_;
  }

 private:
  std::vector<torch::Tensor> tensors() const {
    std::vector<torch::Tensor> all = training_.module->parameters();
    for (const torch::Tensor& buffer : training_.module->buffers()) all.push_back(buffer);
    return all;
  }

  Training training_;
  std::vector<torch::Tensor> initial_;
};

// Returns the seconds of one step, and the peak of the device's memory.
nlohmann::json measure(const Options& options, const std::string& name, const Training& training,
                       const trireme::World& world) {
  const auto forward = [&](const Tensors& batch) {
    const Precision precision(world.device, options.precision);
    return training.loss(batch);
  };
  std::optional<trireme::Parallelized> parallel;
  std::optional<trireme::TrainingStep> recorded;
  torch::optim::Adam optimizer(training.module->parameters(), torch::optim::AdamOptions(1e-5));
  if (name != "plain") {
    const Way way = ways_of(training, world.size).at(name);
    if (way.is_recorded) {
      recorded.emplace(
          *training.module, [&](const Tensors& batch) -> Tensors { return {forward(batch)}; },
          way.plan, world.group);
    } else {
      parallel.emplace(trireme::parallelize(*training.module, way.plan, world.group));
      if (way.plan.zero_level > 0) parallel->shard(optimizer);
    }
  }
  torch::Tensor loss;
  const auto step = [&] {
    optimizer.zero_grad();
    if (recorded) {
      loss = recorded->step(training.batch).loss;
    } else {
      loss = forward(training.batch);
      loss.backward();
    }
    optimizer.step();
  };
  const auto steps = [&](int count) {
    for (int number = 0; number < count; ++number) step();
    wait_for(world.device);
  };
  steps(options.warm_up);
  if (auto* const allocator = counting_allocator(world.device)) {
    allocator->resetPeakStats(world.device.index());
  }
  nlohmann::json record;
  record["seconds"] = bench::seconds_of([&] { steps(options.steps); }, 1) / options.steps;
  if (const auto use = trireme::memory_use(world.device); use.peak_device) {
    record["peak_memory"] = *use.peak_device;
  }
  record["loss"] = loss.item<double>();
  return record;
}

nlohmann::json measure_all(const Options& options, const trireme::World& world) {
  nlohmann::json record = {{"model", options.model},
                           {"precision", options.precision},
                           {"ranks", world.size},
                           {"device", world.device.str()}};
  std::map<std::string, std::vector<double>> seconds;
  // Making a large network takes longer than training it for a few steps, so all ways train one.
  Prepared prepared(options, world.device);
  for (int round = 0; round < options.rounds; ++round) {
    for (const std::string& way : options.ways) {
      if (record["ways"].contains(way) && record["ways"][way].contains("error")) continue;
      try {
        // Distributed tensors remain those of the module.
        std::optional<Prepared> own;
        if (way == kDistributed) own.emplace(options, world.device);
        const nlohmann::json one =
            measure(options, way, (own ? *own : prepared).with_initial_values(), world);
        seconds[way].push_back(one["seconds"]);
        record["ways"][way] = one;
      } catch (const std::exception& error) {
        record["ways"][way] = {{"error", std::string(error.what()).substr(0, 600)}};
        if (world.size > 1) throw;  // the others wait
      }
    }
  }
  for (const auto& [way, rounds] : seconds) {
    auto& entry = record["ways"][way];
    entry["seconds"] = bench::median(rounds);
    entry["all_seconds"] = rounds;
    const auto plain = seconds.find("plain");
    if (plain == seconds.end()) continue;
    std::vector<double> ratios;
    for (std::size_t round = 0; round < rounds.size(); ++round) {
      ratios.push_back(rounds[round] / plain->second.at(round));
    }
    entry["ratio_to_plain"] = bench::median(ratios);
  }
  return record;
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  CLI::App app("Times training steps on an accelerator.");
  app.add_option("--model", options.model)->required();
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--ways", options.ways, "plain and ways of Trireme, separated by semicolons")
      ->delimiter(';')
      ->required();
  app.add_option("--rounds", options.rounds);
  app.add_option("--steps", options.steps, "steps that are timed together");
  app.add_option("--warm-up", options.warm_up, "steps before those");
  CLI11_PARSE(app, argc, argv);
  const auto world = trireme::init();
  const auto record = measure_all(options, world);
  if (world.is_first()) std::cout << record << '\n';
  const auto failed = [](const nlohmann::json& way) { return way.contains("error"); };
  return std::ranges::any_of(record["ways"], failed) ? 1 : 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
