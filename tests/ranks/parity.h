// SPDX-License-Identifier: Apache-2.0
// Trains the small network over ranks and alone, with the same tree of sums.
#pragma once

#include <trireme/optim/lamb.h>
#include <trireme/parallel/parallelize.h>

#include <gmock/gmock.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::test {

struct Case {
  int ranks = 2;
  std::int64_t micro_batches = 1;
  std::int64_t bucket_bytes = 4096;
  int zero_level = 0;
  std::string optimizer = "momentum";
  bool set_to_none = true;
  std::int64_t streams = 1;
  bool is_delayed = false;      // ranks dawdle at random
  bool optimizer_first = true;  // it is made before the module is parallelized
  std::int64_t shard_ranks = 0;
  std::int64_t gathered_buckets = 3;
  std::vector<std::pair<std::string, int>> zero_level_of{};
  bool offload_optimizer = false;
};

// GoogleTest looks for this name.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.ranks << " ranks, " << c.micro_batches << " micro-batches, buckets of "
       << c.bucket_bytes << ", ZeRO level " << c.zero_level << ", " << c.optimizer << ", "
       << c.streams << " streams" << (c.is_delayed ? ", delayed" : "") << ", cut in "
       << c.shard_ranks << ", " << c.gathered_buckets << " gathered"
       << (c.offload_optimizer ? ", offloaded" : "");
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name, std::vector<torch::Tensor> parameters) {
  if (name == "adam") {
    return std::make_unique<torch::optim::Adam>(parameters,
                                                torch::optim::AdamOptions(0.01).amsgrad(true));
  }
  if (name == "adamw") {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  }
  if (name == "rmsprop") {
    return std::make_unique<torch::optim::RMSprop>(
        parameters, torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  }
  if (name == "adagrad") return std::make_unique<torch::optim::Adagrad>(parameters);
  if (name == "sgd")
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05));
  if (name == "lamb") {  // what is no matrix is stepped as by Adam
    std::vector<LambGroup> lamb_groups(2);
    for (const torch::Tensor& parameter : parameters) {
      lamb_groups[parameter.dim() > 1 ? 0 : 1].parameters.push_back(parameter);
    }
    lamb_groups[0].options.learning_rate = lamb_groups[1].options.learning_rate = 0.01;
    lamb_groups[1].adapts = false;
    return lamb(std::move(lamb_groups));
  }
  // Two groups with settings of their own.
  std::vector<torch::Tensor> some = {parameters.back()};
  parameters.pop_back();
  auto slow = std::make_unique<torch::optim::SGDOptions>(0.01);
  std::vector<torch::optim::OptimizerParamGroup> groups = {
      torch::optim::OptimizerParamGroup(parameters),
      torch::optim::OptimizerParamGroup(some, std::move(slow))};
  return std::make_unique<torch::optim::SGD>(
      groups, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
}

// Adds gradients to a sum, one by one; what is undefined stays so.
inline void add_to(std::vector<torch::Tensor>& total, const std::vector<torch::Tensor>& summands) {
  total.resize(summands.size());
  for (std::size_t p = 0; p < summands.size(); ++p) {
    if (!summands[p].defined()) continue;
    total[p] = total[p].defined() ? total[p] + summands[p] : summands[p].clone();
  }
}

// One process, the same tree of sums: copies of the module outside, ranks inside them, and
// micro-batches inside those; divided once.
inline std::vector<torch::Tensor> train_alone(const Case& c, int steps,
                                              at::Device device = at::kCPU) {
  Net net = make_net(1);
  net->to(device);
  const auto parameters = net->parameters();
  const auto optimizer = make_optimizer(c.optimizer, parameters);
  const int ranks_in_copy =
      c.shard_ranks == 0 || c.zero_level == 0 ? c.ranks : static_cast<int>(c.shard_ranks);
  for (int step = 0; step < steps; ++step) {
    std::vector<torch::Tensor> total;
    for (int copy = 0; copy < c.ranks / ranks_in_copy; ++copy) {
      std::vector<torch::Tensor> of_copy;
      for (int rank = copy * ranks_in_copy; rank < (copy + 1) * ranks_in_copy; ++rank) {
        net->zero_grad();
        for (std::int64_t i = 0; i < c.micro_batches; ++i) {
          loss_of(net, make_batch(step, rank * c.micro_batches + i).to(device)).backward();
        }
        std::vector<torch::Tensor> of_rank;
        for (const auto& parameter : parameters) of_rank.push_back(parameter.grad());
        add_to(of_copy, of_rank);
      }
      add_to(total, of_copy);
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      parameters[p].mutable_grad() =
          total[p].defined() ? total[p] / (c.ranks * c.micro_batches) : torch::Tensor();
    }
    optimizer->step();
  }
  return parameters;
}

inline std::vector<torch::Tensor> train_parallel(const Case& c, int steps, const comm::Group& group,
                                                 at::Device device = at::kCPU) {
  Net net = make_net(1 + static_cast<std::uint64_t>(group.rank()));  // rank 0's values count
  net->to(device);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (c.optimizer_first) optimizer = make_optimizer(c.optimizer, net->parameters());
  Parallelized parallelized = parallelize(*net,
                                          {.micro_batches = c.micro_batches,
                                           .bucket_bytes = c.bucket_bytes,
                                           .first_bucket_bytes = c.bucket_bytes,
                                           .allreduce_streams = c.streams,
                                           .zero_level = c.zero_level,
                                           .zero_level_of = c.zero_level_of,
                                           .shard_ranks = c.shard_ranks,
                                           .gathered_buckets = c.gathered_buckets,
                                           .offload_optimizer = c.offload_optimizer},
                                          group);
  if (!optimizer) optimizer = make_optimizer(c.optimizer, net->parameters());
  parallelized.shard(*optimizer);
  std::minstd_rand random(static_cast<unsigned>(group.rank()));
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad(c.set_to_none);
    for (std::int64_t i = 0; i < c.micro_batches; ++i) {
      if (c.is_delayed) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      loss_of(net, make_batch(step, group.rank() * c.micro_batches + i).to(device)).backward();
    }
    if (c.is_delayed) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    optimizer->step();
  }
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : net->parameters()) parameters.push_back(parameter.clone());
  return parameters;
}

inline void expect_bits_of_one_process(const Case& c) {
  constexpr int kSteps = 4;
  const auto expected = train_alone(c, kSteps);
  testing::run_ranks(c.ranks, [&](const comm::Group& group) {
    const auto parameters = train_parallel(c, kSteps, group);
    ASSERT_EQ(parameters.size(), expected.size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      EXPECT_TRUE(torch::equal(parameters[p], expected[p]))
          << "parameter " << p << " on rank " << group.rank();
    }
  });
}

}  // namespace trireme::test
