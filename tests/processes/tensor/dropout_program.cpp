// SPDX-License-Identifier: Apache-2.0
// One rank of `trireme run`: draws masks and trains a small network with dropout on a mesh.
//   dropout_program <ranks along data> <ranks along tensor>
// Rank 0 prints the masks' bits, those of a network that is whole on every rank, and the losses of
// one that is cut.
#include <trireme/comm/world.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iomanip>
#include <ios>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using trireme::DeviceMesh;
using trireme::Layout;
using trireme::Placement;
using trireme::Replicate;
using trireme::Shard;

std::size_t digest(const torch::Tensor& tensor) {
  const auto bytes = tensor.detach().contiguous();
  return std::hash<std::string_view>()(
      {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
}

struct NetworkImpl : torch::nn::Module {
  NetworkImpl()
      : up(register_module("up", torch::nn::Linear(6, 8))),
        down(register_module("down", torch::nn::Linear(8, 6))) {
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::dropout(torch::gelu(up(x)), 0.3, /*train=*/true);
    return x + torch::dropout(down(hidden), 0.3, /*train=*/true);
  }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Network);

// Whole parameters, or columns and rows of the two products.
Network network(const DeviceMesh& mesh, bool is_cut) {
  torch::manual_seed(7);
  Network made;
  const auto place = [&](const torch::Tensor& parameter, const Placement& placement) {
    distribute_in_place(parameter, Layout(mesh, {{"tensor", is_cut ? placement : Replicate{}}}));
  };
  place(made->up->weight, Shard{0});
  place(made->up->bias, Shard{0});
  place(made->down->weight, Shard{1});
  place(made->down->bias, Replicate{});
  return made;
}

// The losses of three steps.
std::vector<double> train(Network& model, const DeviceMesh& mesh, bool is_cut) {
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  const auto plain = torch::sin(torch::arange(24).to(torch::kDouble)).view({4, 6});
  const auto input =
      distribute(plain, Layout(mesh, {{"data", is_cut ? Placement(Shard{0}) : Replicate{}}}));
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto loss = model->forward(input).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void print_masks(const DeviceMesh& mesh, std::ostream& out) {
  torch::manual_seed(5);
  const std::vector<Placement> choices = {Replicate{}, Shard{0}, Shard{1}, Shard{2}};
  for (const Placement& data : choices) {
    for (const Placement& tensor : choices) {
      const auto ones = distribute(torch::ones({3, 5, 2}), Layout(mesh, {data, tensor}));
      out << "mask " << digest(trireme::full(torch::dropout(ones, 0.5, /*train=*/true))) << "\n";
    }
  }
}

void run(std::int64_t along_data, std::int64_t along_tensor) {
  torch::set_num_threads(1);
  const trireme::World world = trireme::init();
  const DeviceMesh mesh(world.group, {{"data", along_data}, {"tensor", along_tensor}});
  std::ostringstream out;
  print_masks(mesh, out);
  Network whole = network(mesh, false);
  for (const double loss : train(whole, mesh, false))
    out << "whole " << std::hexfloat << loss << "\n";
  for (const auto& parameter : whole->parameters())
    out << "whole " << digest(trireme::full(parameter)) << "\n";
  Network cut = network(mesh, true);
  for (const double loss : train(cut, mesh, true)) {
    out << "cut " << std::fixed << std::setprecision(12) << loss << "\n";
  }
  if (world.is_first()) std::cout << out.str() << std::flush;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3) {
    std::fputs("usage: dropout_program <ranks along data> <ranks along tensor>\n", stderr);
    return 2;
  }
  run(std::stoll(arguments[1]), std::stoll(arguments[2]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
