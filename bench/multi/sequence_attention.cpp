// SPDX-License-Identifier: Apache-2.0
// Times forward and backward of causal attention of a long sequence: plain in one process, or with
// the sequence cut over the ranks of a launch, by a ring, by heads and by gathering keys and values
// in turns (bench/cases/tensor.py).
#include <trireme/tensor/sequence_attention.h>

#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/tensor/distributed_tensor.h>

#include <CLI/CLI.hpp>
#include <bench/multi/beside.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kFeatures = 64;

std::vector<torch::Tensor> queries_keys_values(std::int64_t tokens) {
  torch::manual_seed(1);
  std::vector<torch::Tensor> all;
  for (int i = 0; i < 3; ++i) all.push_back(torch::randn({1, kHeads, tokens, kFeatures}));
  return all;
}

void run(std::vector<torch::Tensor>& in) {
  for (torch::Tensor& tensor : in) {
    tensor.mutable_grad().reset();
    tensor.requires_grad_(true);
  }
  const auto output =
      torch::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, /*is_causal=*/true);
  output.sum().backward();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times causal attention of a long sequence, forward and backward.");
  std::int64_t tokens = 8192;
  int calls = 1;
  int samples = 5;
  int threads = 1;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--tokens", tokens, "tokens of the sequence");
  app.add_option("--calls", calls, "calls in a sample");
  app.add_option("--samples", samples, "samples, of which the median counts");
  app.add_option("--threads", threads, "of this process");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(threads);
  const trireme::World world = trireme::init();
  using trireme::SequenceAttention;
  std::vector<std::pair<std::string, SequenceAttention>> ways = {
      {"plain", SequenceAttention::kCheapest}};
  std::vector<torch::Tensor> in = queries_keys_values(tokens);
  trireme::DeviceMesh mesh;
  if (world.size > 1) {
    ways = {{"ring", SequenceAttention::kRing},
            {"heads", SequenceAttention::kHeads},
            {"gather", SequenceAttention::kGather}};
    mesh = trireme::DeviceMesh(world.group, {{"context", world.size}});
    for (torch::Tensor& tensor : in) {
      tensor = trireme::distribute(tensor, trireme::Layout(mesh, {trireme::Shard{2}}));
    }
  }
  std::map<std::string, std::vector<double>> seconds;
  for (int sample = -1; sample < samples; ++sample) {  // the first is not counted
    for (const auto& [name, way] : ways) {
      if (world.size > 1) trireme::tensor::set_sequence_attention(mesh, way);
      trireme::comm::barrier(world.group);
      const double taken = bench::seconds_of(
          [&] {
            run(in);
            trireme::comm::barrier(world.group);
          },
          calls);
      if (sample >= 0) seconds[name].push_back(taken);
    }
  }
  nlohmann::json record;
  for (const auto& [name, all] : seconds) record[name] = bench::median(all);
  if (world.rank == 0) std::cout << record.dump() << "\n";
  return 0;
}
