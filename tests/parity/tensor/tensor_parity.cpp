// SPDX-License-Identifier: Apache-2.0
// The C++ side of tensor_parity.py, one rank of `trireme run`:
//   tensor_parity <in> <out>
// Runs every case on the inputs `<case>/<number>` of a file with the placements that it gives, and
// writes what this rank has of result and gradients to <out>.<rank>.safetensors.
#include <trireme/checkpoint/safetensors.h>
#include <trireme/comm/world.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

using trireme::DeviceMesh;
using trireme::Layout;
using trireme::Partial;
using trireme::Placement;
using trireme::Replicate;
using trireme::Shard;
using trireme::checkpoint::TensorMap;
using Tensors = std::vector<torch::Tensor>;
using Function = std::function<torch::Tensor(const Tensors&)>;

constexpr std::int64_t kHeads = 4;

torch::Tensor attention(const torch::Tensor& query, const torch::Tensor& key,
                        const torch::Tensor& value) {
  return torch::scaled_dot_product_attention(query, key, value);
}

// Inputs in the order of WEIGHTS in tensor_parity.py, the activations first.
torch::Tensor block(const Tensors& in) {
  const std::int64_t width = in[0].size(-1);
  const auto by_head = [&](const torch::Tensor& rows, const torch::Tensor& weight) {
    return torch::linear(rows, weight).unflatten(-1, {kHeads, -1}).transpose(1, 2);
  };
  const auto rows = torch::layer_norm(in[0], {width}, in[1], in[2]);
  const auto mixed = attention(by_head(rows, in[3]), by_head(rows, in[4]), by_head(rows, in[5]));
  const auto x = in[0] + torch::linear(mixed.transpose(1, 2).flatten(2), in[6]);
  const auto normed = torch::layer_norm(x, {width}, in[7], in[8]);
  const auto hidden = torch::gelu(torch::linear(normed, in[9], in[10]));
  return x + torch::linear(hidden, in[11], in[12]);
}

std::map<std::string, Function> cases() {
  const auto add = [](const Tensors& in) { return in[0] + in[1]; };
  const auto mm = [](const Tensors& in) { return in[0].mm(in[1]); };
  const auto softmax = [](const Tensors& in) { return in[0].softmax(1); };
  return {
      {"add", add},
      {"add to rows", add},
      {"add columns", add},
      {"multiply partial", [](const Tensors& in) { return in[0] * in[1]; }},
      {"gelu", [](const Tensors& in) { return torch::gelu(in[0]); }},
      {"columns of a product", mm},
      {"rows of a product", mm},
      {"summands of a product", mm},
      {"batched product", [](const Tensors& in) { return in[0].bmm(in[1]); }},
      {"linear by columns", [](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); }},
      {"linear by rows", [](const Tensors& in) { return torch::linear(in[0], in[1]); }},
      {"sum of all", [](const Tensors& in) { return in[0].sum(); }},
      {"sum of the cut dim", [](const Tensors& in) { return in[0].sum(0); }},
      {"sum of rows", [](const Tensors& in) { return in[0].sum(1, /*keepdim=*/true); }},
      {"mean of the cut dim", [](const Tensors& in) { return in[0].mean(0); }},
      {"largest of the cut dim", [](const Tensors& in) { return in[0].amax(0); }},
      {"softmax of rows", softmax},
      {"softmax of the cut dim", softmax},
      {"layer norm", [](const Tensors& in) { return torch::layer_norm(in[0], {4}, in[1], in[2]); }},
      {"view", [](const Tensors& in) { return in[0].view({6, 2, 2}); }},
      {"flatten", [](const Tensors& in) { return in[0].flatten(0, 1); }},
      {"transpose", [](const Tensors& in) { return in[0].t(); }},
      {"slice", [](const Tensors& in) { return in[0].slice(1, 1, 3); }},
      {"cat", [](const Tensors& in) { return torch::cat({in[0], in[1]}, 1); }},
      {"split",
       [](const Tensors& in) {
         const Tensors halves = torch::split(in[0], 2, 1);
         return halves[0] - halves[1];
       }},
      {"attention over heads", [](const Tensors& in) { return attention(in[0], in[1], in[2]); }},
      {"transformer block", block},
      {"transformer block, cut batch", block},
  };
}

Placement placement_of(const torch::Tensor& code) {
  const auto kind = code[0].item<std::int64_t>();
  if (kind == 1) return Shard{code[1].item<int>()};
  return kind == 2 ? Placement(Partial{}) : Placement(Replicate{});
}

torch::Tensor code_of(const Placement& placement) {
  if (placement.is_shard()) return torch::tensor({std::int64_t{1}, std::int64_t{placement.dim()}});
  return torch::tensor({std::int64_t{placement.is_partial() ? 2 : 0}, std::int64_t{0}});
}

void run_case(const std::string& name, const Function& function, const TensorMap& given,
              const DeviceMesh& mesh, TensorMap& found) {
  const torch::Tensor placements = given.at(name + "/placements");
  Tensors inputs;
  for (std::int64_t i = 0; i < placements.size(0); ++i) {
    const Layout layout(mesh, {placement_of(placements[i])});
    const torch::Tensor& plain = given.at(name + "/" + std::to_string(i));
    inputs.push_back(trireme::distribute(plain, layout).requires_grad_());
  }
  const torch::Tensor result = function(inputs);
  const torch::Tensor whole = trireme::full(result);
  const auto weights = torch::arange(1, whole.numel() + 1, torch::kDouble).view(whole.sizes());
  (whole * weights).sum().backward();
  const auto keep = [&](const std::string& what, const torch::Tensor& tensor) {
    found[name + "/" + what] = tensor.detach().clone(torch::MemoryFormat::Contiguous);
  };
  keep("placement", code_of(trireme::layout_of(result)[0]));
  keep("local", trireme::to_local(result));
  keep("whole", whole);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Layout layout = trireme::layout_of(inputs[i]);
    const Layout target = layout.has_partial() ? Layout::replicated(mesh) : layout;
    keep("gradient " + std::to_string(i),
         trireme::to_local(trireme::redistribute(inputs[i].grad(), target)));
  }
}

void run_all(const std::string& in, const std::string& out) {
  torch::set_num_threads(1);
  const trireme::World world = trireme::init();
  const DeviceMesh mesh(world.group, {{"tensor", world.size}});
  const TensorMap given = trireme::checkpoint::read_safetensors(in).tensors;
  TensorMap found;
  for (const auto& [name, function] : cases()) run_case(name, function, given, mesh, found);
  trireme::checkpoint::write_safetensors(out + "." + std::to_string(world.rank) + ".safetensors",
                                         found);
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3) {
    std::fputs("usage: tensor_parity <in> <out>\n", stderr);
    return 2;
  }
  run_all(arguments[1], arguments[2]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
