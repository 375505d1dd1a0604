// SPDX-License-Identifier: Apache-2.0
// What distributed tensors cost beside plain ones: single operators on a cache hit,
// redistributions, a small MLP, a step of Adam (bench/cases/tensor.py). bench/peers/dtensor.py is
// the same with PyTorch's DTensor. Each rank has [8, 64] of a tensor cut along its rows; operators
// communicate nothing.
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/tensor/dispatch/kernel.h>
#include <trireme/tensor/distributed_tensor.h>

#include <CLI/CLI.hpp>
#include <bench/multi/beside.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using trireme::DeviceMesh;
using trireme::Layout;
using trireme::Partial;
using trireme::Replicate;
using trireme::Shard;

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kColumns = 64;
constexpr int kList = 100;

// A tensor as the plain or the distributed side has it; whether it is cut along its rows.
using Make = std::function<torch::Tensor(const torch::Tensor&, bool)>;

struct Operands {
  torch::Tensor a, b, ones, square, weight, bias;
  std::vector<torch::Tensor> list, others;
};

std::shared_ptr<Operands> operands(std::int64_t rows, const Make& make) {
  auto all = std::make_shared<Operands>();
  all->a = make(torch::randn({rows, kColumns}), true);
  all->b = make(torch::randn({rows, kColumns}), true);
  all->ones = make(torch::ones({rows, kColumns}), true);
  all->square = make(torch::randn({kColumns, kColumns}), false);
  all->weight = make(torch::ones({kColumns}), false);
  all->bias = make(torch::zeros({kColumns}), false);
  for (int i = 0; i < kList; ++i) {
    all->list.push_back(make(torch::randn({rows, kColumns}), true));
    all->others.push_back(make(torch::randn({rows, kColumns}), true));
  }
  return all;
}

using Calls = std::vector<std::pair<std::string, std::function<void()>>>;

Calls operators(const std::shared_ptr<Operands>& in, std::int64_t rows) {
  return {
      {"add", [in] { auto c = in->a + in->b; }},
      {"mm", [in] { auto c = in->a.mm(in->square); }},
      {"sum", [in] { auto c = in->a.sum(); }},
      {"softmax", [in] { auto c = torch::softmax(in->a, 1); }},
      {"layer_norm", [in] { auto c = torch::layer_norm(in->a, {kColumns}, in->weight, in->bias); }},
      {"view", [in, rows] { auto c = in->a.view({rows, 8, 8}); }},
      {"in-place multiply", [in] { in->a.mul_(in->ones); }},
      {"cat", [in] { auto c = torch::cat({in->a, in->b}, 1); }},
      {"detach", [in] { auto c = in->a.detach(); }},
      {"foreach add of 100", [in] { auto c = torch::_foreach_add(in->list, in->others); }},
      {"foreach add in place of 100", [in] { torch::_foreach_add_(in->list, in->others); }},
  };
}

std::function<void()> perceptron_step(std::int64_t rows, const Make& make) {
  std::vector<torch::Tensor> weights;
  for (int layer = 0; layer < 4; ++layer) {
    weights.push_back(
        make(torch::randn({kColumns, kColumns}) / 8, false).detach().requires_grad_());
  }
  return [weights, input = make(torch::randn({rows, kColumns}), true)] {
    for (const auto& weight : weights) weight.mutable_grad().reset();
    torch::Tensor x = input;
    for (const auto& weight : weights) x = torch::relu(torch::linear(x, weight));
    x.sum().backward();
  };
}

// A step of Adam over parameters of [64, 64] on each rank.
std::function<void()> adam_step(std::int64_t rows, const Make& make) {
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < kList; ++i) {
    parameters.push_back(make(torch::randn({rows, kColumns}), true).detach().requires_grad_());
    parameters.back().mutable_grad() = make(torch::randn({rows, kColumns}), true);
  }
  auto optimizer = std::make_shared<torch::optim::Adam>(parameters);
  return [optimizer] { optimizer->step(); };
}

// A redistribution, and the collective in it by itself; both into a new tensor.
struct Move {
  std::string name;
  std::function<void()> plain, distributed;
};

std::vector<Move> moves(const DeviceMesh& mesh, std::int64_t bytes, const std::string& size) {
  const trireme::comm::Group& group = mesh.group(0);
  const std::int64_t columns = std::min<std::int64_t>(bytes / 4 / group.size(), 1024);
  const std::int64_t rows = bytes / 4 / columns;
  const torch::Tensor whole = torch::randn({rows, columns});
  const torch::Tensor part = whole.narrow(0, 0, rows / group.size()).clone();
  const Layout replicated(mesh, {Replicate{}});
  const auto from = [&](const Layout& layout, const Layout& to) {
    return [tensor = trireme::distribute(whole, layout), to] {
      auto c = trireme::redistribute(tensor, to);
    };
  };
  const auto all_gather = [whole, part, group] {
    trireme::comm::all_gather(torch::empty_like(whole), part, group);
  };
  const auto all_reduce = [whole, group] { trireme::comm::all_reduce(whole.clone(), group); };
  const auto reduce_scatter = [whole, part, group] {
    trireme::comm::reduce_scatter(torch::empty_like(part), whole, group);
  };
  const Layout rows_cut(mesh, {Shard{0}});
  const Layout columns_cut(mesh, {Shard{1}});
  const Layout partial(mesh, {Partial{}});
  return {{"Shard(0) to Replicate, " + size, all_gather, from(rows_cut, replicated)},
          {"Shard(1) to Replicate, " + size, all_gather, from(columns_cut, replicated)},
          {"Partial to Replicate, " + size, all_reduce, from(partial, replicated)},
          {"Partial to Shard(0), " + size, reduce_scatter, from(partial, rows_cut)}};
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
  nlohmann::json results;
  // What the first distributed tensor of a process waits for: a kernel of each operator, and rules.
  const double began = bench::now(CLOCK_MONOTONIC);
  trireme::tensor::install();
  results["start"] = bench::now(CLOCK_MONOTONIC) - began;
  const std::int64_t ranks = world.size;
  const DeviceMesh mesh(world.group, {{"tensor", ranks}});
  const Layout cut(mesh, {Shard{0}});
  const Layout whole(mesh, {Replicate{}});
  const auto plain = [](const torch::Tensor& tensor, bool) { return tensor; };
  const auto distributed = [&](const torch::Tensor& tensor, bool is_cut) {
    return trireme::distribute(tensor, is_cut ? cut : whole);
  };
  const auto keep = [&](const std::string& name, const bench::Beside& seconds) {
    results[name + ", plain"] = seconds.plain;
    results[name + ", distributed"] = seconds.other;
  };
  {
    const torch::NoGradGuard no_grad;
    const Calls on_plain = operators(operands(kRows, plain), kRows);
    const Calls on_distributed = operators(operands(kRows * ranks, distributed), kRows * ranks);
    for (std::size_t i = 0; i < on_plain.size(); ++i) {
      const std::string& name = on_plain[i].first;
      const int its_calls = name.starts_with("foreach") ? std::max(calls / 50, 1) : calls;
      keep(name,
           bench::measure_beside(on_plain[i].second, on_distributed[i].second, its_calls, samples));
    }
    // A redistribution's time on the processor beside that of the collective in it.
    const torch::Tensor row = torch::randn({kRows, kColumns});
    const torch::Tensor all = torch::empty({kRows * ranks, kColumns});
    const torch::Tensor tensor = distributed(torch::randn({kRows * ranks, kColumns}), true);
    keep("all-gather",
         bench::measure_beside([&] { trireme::comm::all_gather(all, row, world.group); },
                               [&] { auto c = trireme::redistribute(tensor, whole); },
                               std::max(calls / 10, 1), samples, CLOCK_PROCESS_CPUTIME_ID));
    for (const auto& [bytes, size] : std::vector<std::pair<std::int64_t, std::string>>{
             {1024, "1 KiB"}, {64 << 10, "64 KiB"}, {4 << 20, "4 MiB"}}) {
      const int few = std::max(calls / (bytes > (1 << 20) ? 200 : 10), 1);
      for (const Move& move : moves(mesh, bytes, size)) {
        keep(move.name, bench::measure_beside(move.plain, move.distributed, few, samples));
      }
    }
  }
  const int steps = std::max(calls / 20, 1);
  keep("MLP", bench::measure_beside(perceptron_step(kRows, plain),
                                    perceptron_step(kRows * ranks, distributed), steps, samples));
  keep("Adam over 100",
       bench::measure_beside(adam_step(kColumns, plain), adam_step(kColumns * ranks, distributed),
                             std::max(steps / 10, 1), samples));
  trireme::comm::barrier(world.group);
  if (world.rank == 0) std::cout << results.dump() << "\n";
  return 0;
}
