// SPDX-License-Identifier: Apache-2.0
// Training loops over pipelines whose ranks along `data` cut parameters, and the same steps in one
// process with the same tree of sums.
#pragma once

#include <trireme/optim/gradients.h>
#include <trireme/parallel/training_step.h>

#include <gtest/gtest.h>
#include <tests/ranks/parity.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

struct Arranged {
  int pipe = 2;
  int data = 1;
  int zero_level = 0;
  std::int64_t micro_batches = 2;
  std::string schedule = "1f1b";
  std::string optimizer = "momentum";
  std::int64_t rows = 12;  ///< of each rank along data
  std::int64_t gathered_buckets = 2;
  std::int64_t shard_ranks = 0;
  int steps = 3;
  int chunks = 1;  ///< stages a rank; where more than one, they are cut by cost
  std::vector<std::string> recompute{};
  bool on_devices = false;  ///< stages are on devices of one process for each rank along data
  GradientCompression wire = GradientCompression::kNone;
};

// GoogleTest looks for this name.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const Arranged& arranged, std::ostream* out) {
  *out << arranged.pipe << " stages, " << arranged.data << " along data, ZeRO "
       << arranged.zero_level << ", " << arranged.micro_batches << " micro-batches of "
       << arranged.rows << " rows, " << arranged.schedule << ", " << arranged.optimizer << ", "
       << arranged.gathered_buckets << " gathered, " << arranged.chunks << " stages a rank, "
       << (arranged.recompute.empty() ? "nothing" : arranged.recompute.front()) << " computed again"
       << (arranged.on_devices ? ", on devices" : "");
}

/// Small buckets, so that there are several.
inline Plan plan_of(const Arranged& arranged, const Network& network) {
  Plan plan;
  plan.mesh = {{kDataAxis, arranged.data}, {kStageAxis, arranged.pipe}};
  if (arranged.chunks > 1) plan.chunks = arranged.chunks;
  plan.recompute = arranged.recompute;
  // Of small networks some stages that are cut by cost have too few parameters to be cut on.
  const std::size_t num_stages =
      static_cast<std::size_t>(arranged.pipe) * static_cast<std::size_t>(arranged.chunks);
  const bool can_name = arranged.zero_level == 3 && num_stages <= network.modules.size();
  for (std::size_t stage = 0; stage < num_stages && (arranged.chunks == 1 || can_name); ++stage) {
    plan.stages.emplace_back(network.modules[stage], static_cast<int>(stage));
  }
  plan.schedule = arranged.schedule;
  plan.micro_batches = arranged.micro_batches;
  plan.zero_level = arranged.zero_level;
  plan.shard_ranks = arranged.shard_ranks;
  plan.gathered_buckets = arranged.gathered_buckets;
  plan.bucket_bytes = plan.first_bucket_bytes = 512;
  plan.wire = arranged.wire;
  return plan;
}

/// This rank's rows of a batch for all ranks along data.
inline std::vector<torch::Tensor> part_of(const std::vector<torch::Tensor>& batch, int rank,
                                          int ranks) {
  std::vector<torch::Tensor> part;
  for (const torch::Tensor& tensor : batch) {
    part.push_back(tensor.chunk(ranks)[static_cast<std::size_t>(rank)]);
  }
  return part;
}

struct Outcome {
  /// By rank along data, then by step.
  std::vector<std::vector<torch::Tensor>> losses;
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> buffers;
  std::vector<double> norms{};  ///< of all gradients, by step
};

inline std::vector<torch::Tensor> clones(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& tensor : tensors) all.push_back(tensor.detach().clone());
  return all;
}

// -- one process --------------------------------------------------------------------------------

/// Micro-batches of a batch, the longer ones first.
inline std::vector<std::vector<torch::Tensor>> micro_batches_of(
    const std::vector<torch::Tensor>& batch, std::int64_t count) {
  std::vector<std::vector<torch::Tensor>> all;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t rows = batch[0].size(0);
    const std::int64_t length = rows / count + (i < rows % count ? 1 : 0);
    std::vector<torch::Tensor>& micro_batch = all.emplace_back();
    for (const torch::Tensor& tensor : batch) {
      micro_batch.push_back(tensor.narrow(0, begin, length));
    }
    begin += length;
  }
  return all;
}

/// What the losses of micro-batches count.
inline std::vector<double> weights_of(
    const std::vector<std::vector<torch::Tensor>>& micro_batches) {
  std::vector<double> weights;
  for (const auto& micro_batch : micro_batches) {
    weights.push_back(static_cast<double>(micro_batch[0].size(0)));
  }
  const bool are_equal = std::ranges::count(weights, weights[0]) == std::ssize(weights);
  return are_equal ? std::vector<double>(weights.size(), 1) : weights;
}

/// The mean of losses by weights, summed first.
inline torch::Tensor mean_of(const std::vector<torch::Tensor>& losses,
                             const std::vector<double>& weights) {
  torch::Tensor sum;
  double all = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const torch::Tensor weighted = weights[i] == 1 ? losses[i] : losses[i] * weights[i];
    sum = sum.defined() ? sum + weighted : weighted;
    all += weights[i];
  }
  return sum / all;
}

/// Adds up the gradients of one rank along data in `network`, and returns the mean loss.
inline torch::Tensor accumulate(const Network& network, const std::vector<torch::Tensor>& batch,
                                std::int64_t count) {
  const auto micro_batches = micro_batches_of(batch, count);
  const std::vector<double> weights = weights_of(micro_batches);
  std::vector<torch::Tensor> losses;
  for (std::size_t i = 0; i < micro_batches.size(); ++i) {
    const torch::Tensor loss = network.forward(micro_batches[i])[0];
    loss.backward(torch::full_like(loss, weights[i]));
    losses.push_back(loss.detach());
  }
  return mean_of(losses, weights);
}

/// Steps in one process: ranks one after the other, micro-batches inside them, divided once.
/// @param twin where not null the same module with an own weight in place of each second use of a
/// tied one: gradients of stages are added after those of micro-batches.
class Alone {
 public:
  explicit Alone(Network network, const Network* twin = nullptr)
      : network_(std::move(network)), twin_(twin) {}

  Outcome train(const Arranged& arranged) {
    const auto parameters = network_.module->parameters();
    const auto optimizer = make_optimizer(arranged.optimizer, parameters);
    Outcome outcome{.losses = {}, .parameters = {}, .buffers = {}};
    outcome.losses.resize(static_cast<std::size_t>(arranged.data));
    for (int step = 0; step < arranged.steps; ++step) {
      const auto batch = network_.batch(arranged.rows * arranged.data, step);
      const auto buffers = clones(network_.module->buffers());
      std::vector<torch::Tensor> first_buffers;
      std::vector<torch::Tensor> total;
      for (int rank = 0; rank < arranged.data; ++rank) {
        set_buffers(buffers);
        const auto part = part_of(batch, rank, arranged.data);
        outcome.losses[static_cast<std::size_t>(rank)].push_back(
            accumulate(runner(), part, arranged.micro_batches));
        add_to(total, take_gradients());
        if (rank == 0) first_buffers = clones(network_.module->buffers());
      }
      set_buffers(first_buffers);
      const torch::NoGradGuard no_grad;
      const auto weights =
          weights_of(micro_batches_of(part_of(batch, 0, arranged.data), arranged.micro_batches));
      double divisor = 0;
      for (const double weight : weights) divisor += weight * arranged.data;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (total[i].defined()) parameters[i].mutable_grad() = total[i] / divisor;
      }
      outcome.norms.push_back(global_norm(*optimizer));
      optimizer->step();
      for (const torch::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    }
    outcome.parameters = clones(parameters);
    outcome.buffers = clones(network_.module->buffers());
    return outcome;
  }

 private:
  const Network& runner() {
    if (twin_ == nullptr) return network_;
    const torch::NoGradGuard no_grad;
    const auto own = network_.module->named_parameters();
    for (auto& item : twin_->module->named_parameters()) {
      const std::string name = own.contains(item.key()) ? item.key() : kTied;
      item.value().copy_(own[name]);
    }
    return *twin_;
  }

  void set_buffers(const std::vector<torch::Tensor>& values) {
    const torch::NoGradGuard no_grad;
    auto buffers = network_.module->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(values[i]);
  }

  std::vector<torch::Tensor> take_gradients() {
    const Network& run = twin_ == nullptr ? network_ : *twin_;
    const auto found = run.module->named_parameters();
    std::vector<torch::Tensor> all;
    for (const auto& item : network_.module->named_parameters()) {
      torch::Tensor gradient = std::exchange(found[item.key()].mutable_grad(), {});
      if (twin_ != nullptr && item.key() == kTied) {
        gradient = gradient + std::exchange(found[kSecond].mutable_grad(), {});
      }
      all.push_back(gradient);
    }
    return all;
  }

  static constexpr auto kTied = "token_embedding.weight";
  static constexpr auto kSecond = "head.weight";
  Network network_;
  const Network* twin_;
};

// -- ranks --------------------------------------------------------------------------------------

inline Outcome train(const Network& network, const Arranged& arranged, const comm::Group& group) {
  const auto optimizer = make_optimizer(arranged.optimizer, network.module->parameters());
  const auto num_devices = static_cast<std::size_t>(arranged.on_devices ? arranged.pipe : 0);
  TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group,
                        {.devices = std::vector<at::Device>(num_devices, at::kCPU)});
  pipeline.shard(*optimizer);
  std::vector<torch::Tensor> losses;
  std::vector<double> norms;
  const comm::Group& data = pipeline.data_group();
  for (int step = 0; step < arranged.steps; ++step) {
    optimizer->zero_grad();
    const auto batch = network.batch(arranged.rows * arranged.data, step);
    losses.push_back(pipeline.step(part_of(batch, data.rank(), data.size())).loss.clone());
    norms.push_back(global_norm(*optimizer, pipeline.sharing()));
    optimizer->step();
  }
  pipeline.gather_parameters();
  Outcome outcome{.losses = {}, .parameters = {}, .buffers = {}};
  outcome.losses.resize(static_cast<std::size_t>(arranged.data));
  outcome.losses[static_cast<std::size_t>(data.rank())] = std::move(losses);
  outcome.parameters = clones(network.module->parameters());
  if (data.rank() == 0) outcome.buffers = clones(network.module->buffers());
  outcome.norms = std::move(norms);
  return outcome;
}

inline void expect_same_bits(const std::vector<torch::Tensor>& got,
                             const std::vector<torch::Tensor>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i], expected[i])) << what << " " << i;
  }
}

/// What a rank has seen.
inline void expect_same_bits(const Outcome& got, const Outcome& expected) {
  if (!got.norms.empty()) {
    EXPECT_EQ(got.norms, expected.norms);
  }
  expect_same_bits(got.parameters, expected.parameters, "parameter");
  if (!got.buffers.empty()) expect_same_bits(got.buffers, expected.buffers, "buffer");
  for (std::size_t rank = 0; rank < got.losses.size(); ++rank) {
    if (got.losses[rank].empty()) continue;
    expect_same_bits(got.losses[rank], expected.losses[rank], "loss of step");
  }
}

// -- networks -----------------------------------------------------------------------------------

struct NetworkCase {
  std::string name;
  std::function<Network()> make;
  std::function<Network()> make_twin;  ///< of one with a tied weight; see Alone
};

// GoogleTest looks for this name.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const NetworkCase& network_case, std::ostream* out) {
  *out << network_case.name;
}

inline std::vector<NetworkCase> network_cases() {
  const auto language = [] { return language_model(0); };
  return {{"residual", residual_net, {}},
          {"language", language, {}},
          {"tied", [] { return language_model(0, /*tied=*/true); }, language},
          {"skipping", skipping_net, {}},
          {"recurrent", recurrent_net, {}},
          {"padded", padded_net, {}}};
}

inline Outcome alone(const NetworkCase& network_case, const Arranged& arranged) {
  const bool has_twin = arranged.pipe > 1 && network_case.make_twin != nullptr;
  const Network twin = has_twin ? network_case.make_twin() : network_case.make();
  return Alone(network_case.make(), has_twin ? &twin : nullptr).train(arranged);
}

inline void expect_bits_of(const Outcome& expected, const NetworkCase& network_case,
                           const Arranged& arranged) {
  const int processes = arranged.on_devices ? arranged.data : arranged.pipe * arranged.data;
  testing::run_ranks(processes, [&](const comm::Group& group) {
    SCOPED_TRACE(::testing::PrintToString(arranged));
    expect_same_bits(train(network_case.make(), arranged, group), expected);
  });
}

}  // namespace trireme::test
