// SPDX-License-Identifier: Apache-2.0
// What tests of parallel training look at.
#pragma once

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

namespace trireme::test {

/// The message of the UsageError that `call` throws; else a text that no test expects.
template <typename Call>
std::string usage_error(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Whether a tensor has the value of before, since a TrainingStep trains it on another rank.
inline bool is_trained_elsewhere(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  return usage_error([&] { static_cast<void>(tensor.clone()); }).find("trains on another rank") !=
         std::string::npos;
}

inline std::vector<torch::Tensor> copies(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& parameter : module.parameters()) {
    all.push_back(parameter.detach().clone());
  }
  return all;
}

inline bool all_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

}  // namespace trireme::test
