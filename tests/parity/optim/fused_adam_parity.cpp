// SPDX-License-Identifier: Apache-2.0
// Steps parameters by fused_adam() and fused_adamw() for fused_adam_parity.py: reads options,
// parameters and the gradients of each step as JSON, and prints the parameters after each step.
#include <trireme/optim/fused_adam.h>

#include <nlohmann/json.hpp>
#include <tests/parity/optim/optimizer_steps.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

template <typename Options>
Options read(const json& options) {
  auto given = Options(options.at("lr").get<double>());
  given.betas({options.at("betas").at(0).get<double>(), options.at("betas").at(1).get<double>()})
      .eps(options.at("eps").get<double>())
      .weight_decay(options.at("weight_decay").get<double>())
      .amsgrad(options.at("amsgrad").get<bool>());
  return given;
}

json steps_of(const json& request) {
  std::vector<at::Tensor> parameters;
  for (const json& values : request.at("parameters")) {
    parameters.push_back(trireme::test::tensor_of(values, torch::kFloat).requires_grad_());
  }
  const json& options = request.at("options");
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (request.at("optimizer").get<std::string>() == "AdamW") {
    optimizer = trireme::fused_adamw(parameters, read<torch::optim::AdamWOptions>(options));
  } else {
    optimizer = trireme::fused_adam(parameters, read<torch::optim::AdamOptions>(options));
  }
  return trireme::test::parameters_after_steps(*optimizer, parameters, request.at("gradients"));
}

}  // namespace

int main() {
  json all = json::array();
  for (const json& request : json::parse(std::cin)) all.push_back(steps_of(request));
  std::cout << all.dump() << '\n';
}
