// SPDX-License-Identifier: Apache-2.0
// Steps parameters by LAMB for lamb_parity.py: reads options, parameters and the gradients of each
// step as JSON, and prints the parameters after each step.
#include <trireme/optim/lamb.h>

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <iostream>
#include <vector>

namespace {

using nlohmann::json;

at::Tensor tensor_of(const json& values) {
  return torch::tensor(values.get<std::vector<double>>(), torch::kDouble);
}

std::vector<double> values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + tensor.numel()};
}

}  // namespace

int main() {
  const json input = json::parse(std::cin);
  std::vector<trireme::LambGroup> groups;
  std::vector<at::Tensor> parameters;
  for (const json& group : input.at("groups")) {
    const json& options = group.at("options");
    auto& made = groups.emplace_back();
    made.adapts = group.at("adapts").get<bool>();
    made.options = {.learning_rate = options.at("learning_rate").get<double>(),
                    .beta1 = options.at("beta1").get<double>(),
                    .beta2 = options.at("beta2").get<double>(),
                    .epsilon = options.at("epsilon").get<double>(),
                    .weight_decay = options.at("weight_decay").get<double>(),
                    .largest_norm = options.at("largest_norm").get<double>()};
    for (const json& values : group.at("parameters")) {
      parameters.push_back(tensor_of(values).requires_grad_());
      made.parameters.push_back(parameters.back());
    }
  }
  const auto optimizer = trireme::lamb(groups);
  json steps = json::array();
  for (const json& gradients : input.at("gradients")) {
    for (std::size_t number = 0; number < parameters.size(); ++number) {
      parameters[number].mutable_grad() = tensor_of(gradients.at(number));
    }
    optimizer->step();
    json after = json::array();
    for (const at::Tensor& parameter : parameters) after.push_back(values_of(parameter.detach()));
    steps.push_back(after);
  }
  std::cout << steps.dump() << '\n';
}
