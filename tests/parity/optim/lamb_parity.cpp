// SPDX-License-Identifier: Apache-2.0
// Steps parameters by LAMB for lamb_parity.py: reads options, parameters and the gradients of each
// step as JSON, and prints the parameters after each step.
#include <trireme/optim/lamb.h>

#include <nlohmann/json.hpp>
#include <tests/parity/optim/optimizer_steps.h>
#include <torch/torch.h>

#include <iostream>
#include <vector>

using nlohmann::json;

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
      parameters.push_back(trireme::test::tensor_of(values, torch::kDouble).requires_grad_());
      made.parameters.push_back(parameters.back());
    }
  }
  const auto optimizer = trireme::lamb(groups);
  const json steps =
      trireme::test::parameters_after_steps(*optimizer, parameters, input.at("gradients"));
  std::cout << steps.dump() << '\n';
}
