// SPDX-License-Identifier: Apache-2.0
// A user's program: trains a line over the ranks and checks that all of them ended with the same
// one; then a step in a pipeline.
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <vector>

namespace {

// Two layers with a mark between, a stage each where there are two ranks; whether the loss is one.
bool runs_in_stages(const trireme::World& world) {
  torch::nn::Sequential model(torch::nn::Linear(1, 4), torch::nn::Linear(4, 1));
  trireme::Plan plan{.mesh = {{"pipe", world.size}}, .micro_batches = 4};
  if (world.size == 2) plan.stages = {{"second half", 1}};
  trireme::TrainingStep pipeline(
      *model,
      [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        const at::Tensor x = model[0]->as<torch::nn::Linear>()->forward(in[0]);
        const at::Tensor y =
            model[1]->as<torch::nn::Linear>()->forward(trireme::mark(x, "second half"));
        return {torch::mse_loss(y, in[1])};
      },
      plan, world.group);
  const auto x = torch::linspace(0, 1, 8).unsqueeze(1);
  const auto step = pipeline.step({x, 2 * x + 1}, {.report = true});
  trireme::schedule::verify(pipeline.schedule());
  if (world.is_first()) {
    std::cout << trireme::graph::module_table(pipeline.graph())
              << trireme::schedule::to_text(pipeline.schedule());
  }
  return step.report.has_value() && std::isfinite(step.loss.item<double>());
}

}  // namespace

int main() {
  const auto world = trireme::init();
  torch::nn::Linear model(1, 1);
  const trireme::DataParallel parallel(*model, world.group);
  torch::manual_seed(static_cast<std::uint64_t>(world.rank));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 600; ++step) {
    const auto x = torch::rand({32, 1});
    optimizer.zero_grad();
    torch::mse_loss(model(x), 2 * x + 1).backward();
    optimizer.step();
  }
  const bool has_run_in_stages = runs_in_stages(world);
  const torch::NoGradGuard no_grad;
  const auto weights = torch::empty({world.size});
  trireme::comm::all_gather(weights, model->weight.flatten(), world.group);
  const bool is_right = weights.eq(weights[0]).all().item<bool>() &&
                        (weights[0] - 2).abs().item<float>() < 0.1 && has_run_in_stages;
  if (world.is_first()) std::cout << "weights of all ranks: " << weights << '\n';
  return is_right ? 0 : 1;
}
