// SPDX-License-Identifier: Apache-2.0
// Times forward and backward of one layer of models/gpt.h: plain in one process, or cut over the
// ranks of a launch, attention and MLP column-parallel and then row-parallel
// (bench/cases/tensor.py). bench/peers/dtensor_layer.py is the same with PyTorch's DTensor.
#include <models/gpt.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/distribute_module.h>
#include <trireme/tensor/distributed_tensor.h>

#include <CLI/CLI.hpp>
#include <bench/multi/beside.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <iostream>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kSequence = 128;
constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kHeads = 8;

torch::nn::Sequential one_layer() {
  models::GPT model(models::GPTOptions{
      .vocabulary = 1, .sequence = kSequence, .hidden = kHidden, .layers = 1, .heads = kHeads});
  const auto blocks =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->named_children()["blocks"]);
  return torch::nn::Sequential(blocks);
}

// What Megatron-LM does: queries, keys and values by columns, so that each rank has some heads.
trireme::ParameterLayouts patterns() {
  return trireme::join(
      {trireme::column_parallel("*.attention.input"), trireme::row_parallel("*.attention.output"),
       trireme::column_parallel("*.mlp_input"), trireme::row_parallel("*.mlp_output")});
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times one layer of a GPT, forward and backward.");
  int calls = 5;
  int samples = 15;
  int threads = 1;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--calls", calls, "calls in a sample");
  app.add_option("--samples", samples, "samples, of which the median counts");
  app.add_option("--threads", threads, "of this process");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(threads);
  const trireme::World world = trireme::init();
  torch::manual_seed(1);
  torch::nn::Sequential layer = one_layer();
  torch::Tensor features = torch::randn({kBatch, kSequence, kHidden});
  if (world.size > 1) {
    const trireme::DeviceMesh mesh(world.group, {{"tensor", world.size}});
    trireme::distribute_module(*layer, mesh, patterns());
    features = trireme::distribute(features, trireme::Layout::replicated(mesh));
  }
  features.requires_grad_();
  const std::vector<torch::Tensor> parameters = layer->parameters();
  const auto step = [&] {
    features.mutable_grad().reset();
    for (const auto& parameter : parameters) parameter.mutable_grad().reset();
    layer->forward(features).sum().backward();
  };
  bench::seconds_of(step, calls);
  std::vector<double> seconds;
  for (int sample = 0; sample < samples; ++sample) {
    trireme::comm::barrier(world.group);
    seconds.push_back(bench::seconds_of(step, calls));
  }
  trireme::comm::barrier(world.group);
  if (world.rank == 0) {
    std::cout << nlohmann::json({{"GPT layer", bench::median(seconds)}}).dump() << "\n";
  }
  return 0;
}
