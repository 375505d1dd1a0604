// SPDX-License-Identifier: Apache-2.0
// Networks of the kinds that people train, small enough for thousands of steps in a test, each with
// data and a loss for every micro-batch of every step.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::test {

struct SmallModel {
  std::shared_ptr<torch::nn::Module> module;
  /// Of a micro-batch, numbered over all ranks; the same data in every process. Dropout draws from
  /// LibTorch's own generator, which the caller seeds.
  std::function<torch::Tensor(int step, std::int64_t micro_batch)> loss;
};

/// mlp; resnet (batch norm, and buffers with it); gpt (a tied weight, dropout, attention); lstm
/// (dropout between two layers).
inline const std::vector<std::string> kSmallModels = {"mlp", "resnet", "gpt", "lstm"};

/// Initial values are drawn from `seed`. Throws std::invalid_argument for a name that it does not
/// know.
SmallModel make_small_model(const std::string& name, std::uint64_t seed);

}  // namespace trireme::test
