// SPDX-License-Identifier: Apache-2.0
// What distributed tensors cost beside plain ones: single operators on a cache hit, a
// redistribution, a small MLP (bench/cases/tensor.py). bench/peers/dtensor.py is the same with
// PyTorch's DTensor. Each rank has [8, 64] of a tensor cut along its rows; operators communicate
// nothing.
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/tensor/distributed_tensor.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

using trireme::DeviceMesh;
using trireme::Layout;
using trireme::Replicate;
using trireme::Shard;

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kColumns = 64;

double now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Median over samples of the seconds that one call takes.
double measure(const std::function<void()>& call, int calls, int samples,
               clockid_t clock = CLOCK_MONOTONIC) {
  for (int i = 0; i < calls; ++i) call();
  std::vector<double> seconds;
  for (int sample = 0; sample < samples; ++sample) {
    const double began = now(clock);
    for (int i = 0; i < calls; ++i) call();
    seconds.push_back((now(clock) - began) / calls);
  }
  std::ranges::nth_element(seconds, seconds.begin() + samples / 2);
  return seconds[static_cast<std::size_t>(samples / 2)];
}

struct Operands {
  torch::Tensor a, b, square, weight, bias;
  std::vector<torch::Tensor> list, others;
};

Operands operands(std::int64_t rows,
                  const std::function<torch::Tensor(torch::Tensor, bool)>& make) {
  Operands all;
  all.a = make(torch::randn({rows, kColumns}), true);
  all.b = make(torch::randn({rows, kColumns}), true);
  all.square = make(torch::randn({kColumns, kColumns}), false);
  all.weight = make(torch::ones({kColumns}), false);
  all.bias = make(torch::zeros({kColumns}), false);
  for (int i = 0; i < 100; ++i) {
    all.list.push_back(make(torch::randn({rows, kColumns}), true));
    all.others.push_back(make(torch::randn({rows, kColumns}), true));
  }
  return all;
}

std::map<std::string, std::function<void()>> operators(Operands& in, std::int64_t rows) {
  return {
      {"add", [&] { auto c = in.a + in.b; }},
      {"mm", [&] { auto c = in.a.mm(in.square); }},
      {"sum", [&] { auto c = in.a.sum(); }},
      {"softmax", [&] { auto c = torch::softmax(in.a, 1); }},
      {"layer_norm", [&] { auto c = torch::layer_norm(in.a, {kColumns}, in.weight, in.bias); }},
      {"view", [&, rows] { auto c = in.a.view({rows, 8, 8}); }},
      {"in-place multiply", [&] { in.a.mul_(in.b); }},
      {"cat", [&] { auto c = torch::cat({in.a, in.b}, 1); }},
      {"detach", [&] { auto c = in.a.detach(); }},
      {"foreach add of 100", [&] { auto c = torch::_foreach_add(in.list, in.others); }},
  };
}

struct Perceptron {
  std::vector<torch::Tensor> weights;
  torch::Tensor input;

  void step() {
    for (auto& weight : weights) weight.mutable_grad().reset();
    torch::Tensor x = input;
    for (auto& weight : weights) x = torch::relu(torch::linear(x, weight));
    x.sum().backward();
  }
};

Perceptron perceptron(std::int64_t rows,
                      const std::function<torch::Tensor(torch::Tensor, bool)>& make) {
  Perceptron model;
  for (int layer = 0; layer < 4; ++layer) {
    model.weights.push_back(
        make(torch::randn({kColumns, kColumns}) / 8, false).detach().requires_grad_());
  }
  model.input = make(torch::randn({rows, kColumns}), true);
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times operators on distributed tensors and on plain ones.");
  int calls = 2000;
  int samples = 15;
  app.add_option("--calls", calls, "calls in a sample");
  app.add_option("--samples", samples, "samples, of which the median counts");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  const trireme::World world = trireme::init();
  const std::int64_t ranks = world.size;
  const DeviceMesh mesh(world.group, {{"tensor", ranks}});
  const Layout cut(mesh, {Shard{0}});
  const Layout whole(mesh, {Replicate{}});
  const auto plain = [](const torch::Tensor& tensor, bool) { return tensor; };
  const auto distributed = [&](const torch::Tensor& tensor, bool is_cut) {
    return trireme::distribute(tensor, is_cut ? cut : whole);
  };
  Operands of_plain = operands(kRows, plain);
  Operands of_distributed = operands(kRows * ranks, distributed);
  nlohmann::json results;
  {
    const torch::NoGradGuard no_grad;
    const auto on_plain = operators(of_plain, kRows);
    const auto on_distributed = operators(of_distributed, kRows * ranks);
    for (const auto& [name, call] : on_plain) {
      const int its_calls = name.starts_with("foreach") ? std::max(calls / 50, 1) : calls;
      results[name + ", plain"] = measure(call, its_calls, samples);
      results[name + ", distributed"] = measure(on_distributed.at(name), its_calls, samples);
    }
    // A redistribution's time on the processor beside that of the collective in it.
    const torch::Tensor row = torch::randn({kRows, kColumns});
    const torch::Tensor all = torch::empty({kRows * ranks, kColumns});
    const torch::Tensor tensor = of_distributed.b;
    const int few = std::max(calls / 10, 1);
    results["all-gather, plain"] =
        measure([&] { trireme::comm::all_gather(all, row, world.group); }, few, samples,
                CLOCK_PROCESS_CPUTIME_ID);
    results["all-gather, distributed"] =
        measure([&] { auto c = trireme::redistribute(tensor, whole); }, few, samples,
                CLOCK_PROCESS_CPUTIME_ID);
  }
  Perceptron plain_model = perceptron(kRows, plain);
  Perceptron model = perceptron(kRows * ranks, distributed);
  const int steps = std::max(calls / 20, 1);
  results["MLP, plain"] = measure([&] { plain_model.step(); }, steps, samples);
  results["MLP, distributed"] = measure([&] { model.step(); }, steps, samples);
  trireme::comm::barrier(world.group);
  if (world.rank == 0) std::cout << results.dump() << "\n";
  return 0;
}
