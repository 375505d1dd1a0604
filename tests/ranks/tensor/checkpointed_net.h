// SPDX-License-Identifier: Apache-2.0
// A module with what is hard about checkpoints of distributed tensors, and steps of its optimizer
// whose gradients are given, so that every rank and one process take the same.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

// Sizes that few meshes divide, three dims, one element, none, a tied weight that goes by `tied`,
// buffers of two dtypes and a weight whose memory is not row by row.
struct CutNetImpl : torch::nn::Module {
  CutNetImpl() {
    first = register_module("first", torch::nn::Linear(7, 10));
    second = register_module("second", torch::nn::Linear(10, 5));
    tied = register_parameter("tied", second->weight);
    cube = register_parameter("cube", torch::zeros({3, 4, 5}));
    image = register_parameter(
        "image", torch::zeros({2, 3, 4, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    scalar = register_parameter("scalar", torch::zeros({}));
    empty = register_parameter("empty", torch::zeros({0, 3}));
    mean = register_buffer("mean", torch::zeros({6}));
    count = register_buffer("count", torch::zeros({5}, torch::kLong));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor tied, cube, image, scalar, empty, mean, count;
};
TORCH_MODULE(CutNet);

// Values that depend on nothing but name, shape and number.
inline torch::Tensor values(const std::string& name, const torch::Tensor& like, int number) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number) +
                                                  1000 * std::hash<std::string>()(name) % 100000);
  const torch::Tensor drawn =
      torch::rand(like.sizes(), generator, torch::TensorOptions().dtype(torch::kDouble)) * 7 - 3;
  return drawn.to(like.scalar_type());
}

inline CutNet make_cut_net(int number) {
  CutNet net;
  const torch::NoGradGuard no_grad;
  for (auto& item : net->named_parameters()) {
    item.value().copy_(values(item.key(), item.value(), number));
  }
  for (auto& item : net->named_buffers()) {
    item.value().copy_(values(item.key(), item.value(), number));
  }
  return net;
}

inline void step(CutNet& net, torch::optim::Optimizer& optimizer, int number) {
  for (auto& item : net->named_parameters()) {
    torch::Tensor& parameter = item.value();
    if (item.key() == "second.bias") continue;  // of which there is no state then
    const torch::Tensor gradient =
        values(item.key(), torch::zeros(parameter.sizes(), parameter.scalar_type()), number);
    parameter.mutable_grad() =
        has_layout(parameter) ? distribute(gradient, layout_of(parameter)) : gradient;
  }
  optimizer.step();
}

// Ranks in a grid, and what is cut how on it. Without axes one process and plain tensors.
struct Cut {
  std::string what;
  std::vector<MeshAxis> axes{};
  ParameterLayouts layouts{};

  int ranks() const {
    std::int64_t all = 1;
    for (const MeshAxis& axis : axes) all *= axis.size;
    return static_cast<int>(all);
  }
};

// As distribute_module, which makes no sums.
inline void distribute_net(CutNet& net, const DeviceMesh& mesh, const ParameterLayouts& layouts) {
  const auto put = [&](const auto& named) {
    for (const auto& item : named) {
      if (has_layout(item.value())) continue;
      const ParameterLayout* const found = find_layout(layouts, item.key());
      distribute_in_place(item.value(), found == nullptr ? Layout::replicated(mesh)
                                                         : Layout(mesh, found->placements));
    }
  };
  put(net->named_parameters());
  put(net->named_buffers());
}

inline std::vector<Cut> cuts() {
  const FlatShard of_60{{{40, 20}, {0, 33}, {33, 7}}};  // in an order of their own
  const FlatShard of_10{{{0, 10}, {10, 0}, {10, 0}}};
  return {
      {.what = "one process"},
      {.what = "rows and columns",
       .axes = {{"tensor", 2}},
       .layouts = {{"first.*", {{"tensor", Shard{0}}}},
                   {"tied", {{"tensor", Shard{1}}}},
                   {"cube", {{"tensor", Shard{1}}}},
                   {"image", {{"tensor", Shard{2}}}},
                   {"mean", {{"tensor", Shard{0}}}}}},
      {.what = "uneven, and empty parts",
       .axes = {{"tensor", 4}},
       .layouts = {{"first.weight", {{"tensor", Shard{1}}}},
                   {"first.bias", {{"tensor", Shard{0}}}},
                   {"tied", {{"tensor", Shard{0}}}},
                   {"cube", {{"tensor", Shard{0}}}},
                   {"image", {{"tensor", Shard{1}}}},
                   {"empty", {{"tensor", Shard{0}}}},
                   {"count", {{"tensor", Shard{0}}}}}},
      {.what = "two axes, on two dims and on one",
       .axes = {{"data", 2}, {"tensor", 3}},
       .layouts = {{"first.weight", {{"data", Shard{1}}, {"tensor", Shard{0}}}},
                   {"first.bias", {{"data", Shard{0}}, {"tensor", Shard{0}}}},
                   {"tied", {{"data", Shard{1, 1}}, {"tensor", Shard{1, 0}}}},
                   {"cube", {{"tensor", Shard{2}}}},
                   {"image", {{"data", Shard{3}}, {"tensor", Shard{1}}}}}},
      {.what = "sums that are still to be made",
       .axes = {{"data", 2}, {"tensor", 2}},
       .layouts = {{"mean", {{"data", Partial{}}, {"tensor", Shard{0}}}},
                   {"count", {{"tensor", Partial{PartialOp::kMaximum}}}},
                   {"cube", {{"data", Shard{2}}}}}},
      {.what = "flat ranges",
       .axes = {{"data", 2}, {"flat", 3}},
       .layouts = {{"cube", {{"flat", of_60}}}, {"first.bias", {{"flat", of_10}}}}},
  };
}

}  // namespace trireme::test
