// SPDX-License-Identifier: Apache-2.0
// Transformers of four families on eight ranks, in data x tensor x pipeline with ZeRO and
// recomputation: by a plan alone, and within rounding what one process does.
#include <trireme/comm/collectives.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/transformer_layouts.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/small_transformers.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace trireme {
namespace {

using testing::run_ranks;
using torch::Tensor;

constexpr int kSteps = 3;
constexpr std::int64_t kRows = 4;  // of each rank along `data`, in two micro-batches
constexpr double kBound = 1e-9;    // relative and absolute, of doubles

struct Network {
  std::shared_ptr<torch::nn::Module> module;
  graph::Forward forward;  // of the two columns that batch_of() returns
  std::string block;       // a pattern for its blocks
};

template <typename Holder>
Network of_words(const Holder& net, const std::string& block) {
  return {net.ptr(),
          [net](const auto& in) -> std::vector<Tensor> {
            const Tensor logits = Holder(net)->forward(in[0]);
            return {torch::cross_entropy_loss(logits.flatten(0, 1), in[1].flatten())};
          },
          block};
}

Network make(const std::string& family) {
  Network network;
  if (family == "gpt") {
    network = of_words(models::GPT(test::small_gpt()), "blocks.?");
  } else if (family == "llama") {
    network = of_words(models::LLaMA(test::small_llama()), "blocks.?");
  } else if (family == "bert") {
    network = of_words(models::BERT(test::small_bert()), "layers.?");
  } else {
    models::ViT net(test::small_vit());
    network = {net.ptr(),
               [net](const auto& in) -> std::vector<Tensor> {
                 return {torch::cross_entropy_loss(models::ViT(net)->forward(in[0]), in[1])};
               },
               "blocks.?"};
  }
  network.module->to(torch::kDouble);
  return network;
}

// The rows of all ranks along `data`.
std::vector<Tensor> batch_of(const std::string& family, std::int64_t rows, int step) {
  auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
  if (family == "vit") {
    return {torch::randn({rows, 3, 8, 8}, random, torch::kDouble),
            torch::randint(0, 5, {rows}, random, torch::kLong)};
  }
  return {torch::randint(0, 50, {rows, 8}, random, torch::kLong),
          torch::randint(0, 50, {rows, 8}, random, torch::kLong)};
}

struct Setting {
  std::string family;
  std::vector<MeshAxis> mesh;
  std::string schedule = "1f1b";
  int zero_level = 0;
  bool recomputes = false;
};

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  out << setting.family;
  for (const MeshAxis& axis : setting.mesh) out << " " << axis.name << "=" << axis.size;
  return out << " " << setting.schedule << ", ZeRO " << setting.zero_level
             << (setting.recomputes ? ", recomputed" : "");
}

std::vector<double> train_alone(const Network& network, const std::string& family,
                                std::int64_t rows) {
  torch::optim::AdamW optimizer(network.module->parameters(), torch::optim::AdamWOptions(0.01));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = network.forward(batch_of(family, rows, step)).front();
    losses.push_back(loss.item<double>());
    loss.backward();
    optimizer.step();
  }
  return losses;
}

class TransformerOnEightRanks : public ::testing::TestWithParam<Setting> {};

TEST_P(TransformerOnEightRanks, TrainsLikeOneProcess) {
  const Setting& setting = GetParam();
  torch::manual_seed(1);
  const Network plain = make(setting.family);
  std::vector<Network> copies;  // one for each rank, made before ranks begin
  for (int rank = 0; rank < 8; ++rank) {
    copies.push_back(make(setting.family));
    const torch::NoGradGuard no_grad;
    const auto values = plain.module->named_parameters();
    for (auto& entry : copies.back().module->named_parameters()) {
      entry.value().copy_(values[entry.key()]);
    }
  }
  Plan plan;
  plan.mesh = setting.mesh;
  plan.layouts = transformer_layouts(*plain.module);
  plan.schedule = setting.schedule;
  plan.micro_batches = 2;
  plan.zero_level = setting.zero_level;
  if (setting.recomputes) plan.recompute = {plain.block};
  const auto data = static_cast<int>(data_ranks(plan, 8));
  const std::vector<double> expected = train_alone(plain, setting.family, kRows * data);
  run_ranks(8, [&](const comm::Group& group) {
    const Network& network = copies[static_cast<std::size_t>(group.rank())];
    torch::optim::AdamW optimizer(network.module->parameters(), torch::optim::AdamWOptions(0.01));
    TrainingStep training(*network.module, network.forward, plan, group);
    training.shard(optimizer);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      std::vector<Tensor> own;
      for (const Tensor& column : batch_of(setting.family, kRows * data, step)) {
        own.push_back(column.narrow(0, training.data_group().rank() * kRows, kRows));
      }
      Tensor loss = training.step(own).loss.clone();
      optimizer.step();
      // The mean of equally large parts.
      comm::all_reduce(loss, training.data_group());
      EXPECT_NEAR(loss.item<double>() / data, expected[static_cast<std::size_t>(step)], kBound)
          << "step " << step;
    }
    training.gather_parameters();
    const auto values = plain.module->named_parameters();
    for (const auto& entry : network.module->named_parameters()) {
      EXPECT_TRUE(
          torch::allclose(full(entry.value().detach()), values[entry.key()], kBound, kBound))
          << entry.key();
    }
  });
}

std::vector<Setting> settings() {
  const std::vector<MeshAxis> cube = {{"data", 2}, {"pipe", 2}, {"tensor", 2}};
  std::vector<Setting> all;
  for (const char* const family : {"gpt", "bert", "llama", "vit"}) {
    all.push_back({.family = family, .mesh = cube, .zero_level = 1, .recomputes = true});
    all.push_back({.family = family, .mesh = cube, .schedule = "zb-h1", .zero_level = 3});
    all.push_back({.family = family,
                   .mesh = {{"pipe", 2}, {"data", 1}, {"tensor", 4}},
                   .zero_level = 0,
                   .recomputes = true});
    all.push_back({.family = family,
                   .mesh = {{"data", 4}, {"tensor", 2}},
                   .zero_level = 3,
                   .recomputes = true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Families, TransformerOnEightRanks, ::testing::ValuesIn(settings()));

}  // namespace
}  // namespace trireme
