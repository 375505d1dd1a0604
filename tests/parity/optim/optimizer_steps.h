// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers over numbers in JSON, for programs whose results Python compares.
#pragma once

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <vector>

namespace trireme::test {

/// Returns a tensor of the numbers in a list.
inline at::Tensor tensor_of(const nlohmann::json& values, at::ScalarType dtype) {
  return torch::tensor(values.get<std::vector<double>>(), torch::kDouble).to(dtype);
}

/// Makes a step with each list of gradients, and returns the parameters after every step.
inline nlohmann::json parameters_after_steps(torch::optim::Optimizer& optimizer,
                                             const std::vector<at::Tensor>& parameters,
                                             const nlohmann::json& all_gradients) {
  auto steps = nlohmann::json::array();
  for (const nlohmann::json& gradients : all_gradients) {
    for (std::size_t number = 0; number < parameters.size(); ++number) {
      parameters[number].mutable_grad() =
          tensor_of(gradients.at(number), parameters[number].scalar_type());
    }
    optimizer.step();
    auto after = nlohmann::json::array();
    for (const at::Tensor& parameter : parameters) {
      const at::Tensor values = parameter.detach().to(torch::kDouble);
      const auto* const begin = values.const_data_ptr<double>();
      after.push_back(std::vector<double>(begin, begin + values.numel()));
    }
    steps.push_back(after);
  }
  return steps;
}

}  // namespace trireme::test
