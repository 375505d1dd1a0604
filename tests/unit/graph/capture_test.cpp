// SPDX-License-Identifier: Apache-2.0
// What a record says of operators, values, modules and costs, and that recording leaves no trace.
#include <models/gpt.h>
#include <models/llama.h>
#include <trireme/graph/boundaries.h>
#include <trireme/graph/guard.h>
#include <trireme/graph/module_path.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <tests/unit/graph/replays.h>

#include <algorithm>

namespace trireme::test {
namespace {

namespace nn = torch::nn;
using graph::Graph;
using graph::Node;
using graph::Value;
using graph::ValueKind;

std::vector<std::string> names_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.name());
  return names;
}

std::vector<std::string> modules_of(const Graph& graph) {
  std::vector<std::string> modules;
  for (const Node& node : graph.nodes) modules.push_back(node.module);
  return modules;
}

Subject classifier() {
  nn::Sequential net(nn::Conv2d(3, 8, 3), nn::BatchNorm2d(8), nn::ReLU(nn::ReLUOptions(true)),
                     nn::Flatten(), nn::Dropout(0.5), nn::Linear(8 * 36, 10));
  return {net.ptr(),
          [net](const Tensors& x) mutable -> Tensors {
            return {nn::functional::cross_entropy(net->forward(x[0]), x[1])};
          },
          {torch::randn({2, 3, 8, 8}), torch::randint(10, {2})}};
}

TEST(CaptureRecord, KeepsCompositeOperatorsWhole) {
  const Graph graph = captured(classifier());
  EXPECT_EQ(names_of(graph),
            (std::vector<std::string>{"aten::conv2d", "aten::add_.Scalar", "aten::batch_norm",
                                      "aten::relu_", "aten::flatten.using_ints", "aten::dropout",
                                      "aten::t", "aten::addmm", "aten::cross_entropy_loss"}));
  EXPECT_EQ(modules_of(graph),
            (std::vector<std::string>{"0", "1", "1", "1", "1", "1", "5", "5", ""}));
  EXPECT_TRUE(graph.nodes[5].is_random);
  EXPECT_FALSE(graph.nodes[0].is_random);
}

TEST(CaptureRecord, HasShapesAndNamesOfValues) {
  const Graph graph = captured(classifier());
  ASSERT_EQ(graph.parameters.size(), 6U);
  ASSERT_EQ(graph.buffers.size(), 3U);
  ASSERT_EQ(graph.inputs.size(), 2U);
  const Value& weight = graph.value(graph.parameters[0]);
  EXPECT_EQ(weight.name, "0.weight");
  EXPECT_EQ(weight.kind, ValueKind::kParameter);
  EXPECT_TRUE(weight.requires_grad);
  EXPECT_EQ(weight.sizes, (std::vector<std::int64_t>{8, 3, 3, 3}));
  const Value& convolved = graph.value(graph.nodes[0].outputs[0]);
  EXPECT_EQ(convolved.sizes, (std::vector<std::int64_t>{2, 8, 6, 6}));
  EXPECT_EQ(convolved.node, 0);
  EXPECT_EQ(convolved.bytes(), 2 * 8 * 36 * 4);
  const Value& labels = graph.value(graph.inputs[1]);
  EXPECT_EQ(labels.dtype, at::kLong);
  EXPECT_EQ(labels.name, "input 1");
  EXPECT_EQ(graph.value(graph.results[0]).sizes.size(), 0U);
}

TEST(CaptureRecord, MakesAValueOfEveryWrite) {
  const Graph graph = captured(classifier());
  const Node& norm = graph.nodes[2];
  ASSERT_EQ(norm.writes.size(), 2U) << "running statistics, which the schema does not say";
  EXPECT_EQ(graph.value(norm.writes[0].before).name, "1.running_mean");
  EXPECT_EQ(graph.value(norm.writes[1].before).name, "1.running_var");
  const Node& relu = graph.nodes[3];
  ASSERT_EQ(relu.writes.size(), 1U);
  EXPECT_EQ(relu.writes[0].before, norm.outputs[0]);
  EXPECT_EQ(relu.writes[0].after, relu.outputs[0]);
  EXPECT_EQ(graph.value(relu.outputs[0]).object, norm.outputs[0]);
  const Value& flat = graph.value(graph.nodes[4].outputs[0]);
  EXPECT_EQ(flat.view_of, relu.outputs[0]);
  EXPECT_EQ(flat.memory, norm.outputs[0]);
}

TEST(CaptureRecord, HasWholeShapesOfWhatIsDistributed) {
  const Subject subject = classifier();
  const Graph plain = captured(subject);
  const Layout layout = Layout::replicated(DeviceMesh::unconnected({{"tensor", 1}}));
  for (const at::Tensor& parameter : subject.module->parameters()) {
    distribute_in_place(parameter, layout);
  }
  const at::Tensor weight = subject.module->parameters()[0];
  weight.mutable_grad() = distribute(torch::ones({8, 3, 3, 3}), layout);
  const at::Tensor part = to_local(weight.detach());
  const at::Tensor values = part.clone();
  const auto version = weight._version();
  const Graph distributed = captured(subject);
  EXPECT_EQ(graph::first_difference(plain, distributed), "");
  EXPECT_EQ(layout_of(weight), layout);
  EXPECT_EQ(to_local(weight.detach()).data_ptr(), part.data_ptr());
  EXPECT_TRUE(torch::equal(part, values));
  EXPECT_EQ(weight._version(), version);
  EXPECT_TRUE(torch::equal(full(weight.grad()), torch::ones({8, 3, 3, 3})));
}

TEST(CaptureRecord, CountsFlopsOfForwardAndBackward) {
  nn::Linear net(32, 64);
  const Graph graph = captured(
      {net.ptr(),
       [net](const Tensors& x) mutable -> Tensors { return {net->forward(x[0]).tanh().sum()}; },
       {torch::randn({16, 32}).requires_grad_()}});
  const double product = 2.0 * 16 * 32 * 64;
  EXPECT_EQ(graph.nodes[1].name(), "aten::addmm");
  EXPECT_NEAR(graph.nodes[1].flops, product, product / 10);
  EXPECT_NEAR(graph.nodes[1].backward_flops, 2 * product, product / 5);
  EXPECT_GT(graph.nodes[2].flops, 0);
  EXPECT_GT(graph.nodes[2].backward_flops, 0);
  EXPECT_EQ(graph.nodes[2].bytes, 16 * 64 * 4);
}

// A transpose counted as many operations as it has elements, and so did everything else that only
// moves numbers.
TEST(CaptureRecord, CountsNoFlopsForViewsAndCopies) {
  nn::Linear net(4, 4);
  const Graph graph = captured(
      {net.ptr(),
       [net](const Tensors& x) mutable -> Tensors {
         const at::Tensor h = net->forward(x[0]).view({2, 3, 4});
         const at::Tensor turned = h.transpose(1, 2).contiguous().flatten(1).permute({1, 0});
         const at::Tensor some = torch::cat({turned.clone(), turned.to(at::kDouble)}).slice(0, 1);
         const at::Tensor more = torch::stack({some, some.flip(0)}).index_select(1, x[1]);
         return {torch::embedding(net->weight, x[1]).unsqueeze(0).expand({2, -1, -1}).sum() +
                 more.sum()};
       },
       {torch::randn({6, 4}), torch::arange(3)}});
  int num_moving = 0;
  for (const Node& node : graph.nodes) {
    const bool computes = node.name() == "aten::addmm" || node.name() == "aten::sum" ||
                          node.name() == "aten::add.Tensor";
    if (computes) {
      EXPECT_GT(node.flops, 0) << node.name();
    } else {
      EXPECT_EQ(node.flops, 0) << node.name();
      ++num_moving;
    }
  }
  EXPECT_GE(num_moving, 14);
}

TEST(CaptureRecord, KnowsWhatBackwardKeeps) {
  nn::Linear first(8, 8);
  nn::Linear second(8, 8);
  auto net = std::make_shared<nn::Module>();
  net->register_module("first", first);
  net->register_module("second", second);
  const Graph graph = captured({net,
                                [=](const Tensors& x) mutable -> Tensors {
                                  const at::Tensor a = first->forward(x[0]) + 1;
                                  const at::Tensor b = torch::layer_norm(torch::relu(a), {8});
                                  return {second->forward(b).sum()};
                                },
                                {torch::randn({4, 8})}});
  const auto is_saved = [&](std::size_t node) {
    return graph.value(graph.nodes[node].outputs[0]).is_saved;
  };
  EXPECT_TRUE(graph.value(graph.inputs[0]).is_saved) << "for the gradient of first.weight";
  // t, addmm, add, relu, layer_norm, t, addmm, sum
  EXPECT_FALSE(is_saved(1)) << "adding a number needs nothing";
  EXPECT_FALSE(is_saved(2)) << "relu keeps its result alone";
  EXPECT_TRUE(is_saved(3));
  EXPECT_TRUE(is_saved(4)) << "for the gradient of second.weight";
  EXPECT_FALSE(is_saved(6));
  EXPECT_EQ(graph.nodes[4].saved_bytes, 2 * 4 * 4) << "mean and deviation of each row";
  EXPECT_EQ(graph.nodes[3].saved_bytes, 0);
}

struct Tied : nn::Module {
  explicit Tied(const at::Tensor& weight) { register_parameter("weight", weight); }
};

TEST(CaptureRecord, NamesModulesThatShareAParameter) {
  const at::Tensor weight = torch::randn({10, 6});
  auto net = std::make_shared<nn::Module>();
  net->register_module("embedding", std::make_shared<Tied>(weight));
  nn::Linear between(6, 6);
  net->register_module("between", between);
  net->register_module("head", std::make_shared<Tied>(net->named_parameters()["embedding.weight"]));
  const Graph graph =
      captured({net,
                [=](const Tensors& x) mutable -> Tensors {
                  const at::Tensor embedding = net->named_parameters()["embedding.weight"];
                  const at::Tensor h = between->forward(torch::embedding(embedding, x[0]));
                  return {torch::linear(h, embedding).sum()};
                },
                {torch::randint(10, {4})}});
  EXPECT_EQ(graph.parameters.size(), 3U);
  EXPECT_EQ(graph.value(graph.parameters[0]).names,
            (std::vector<std::string>{"embedding.weight", "head.weight"}));
  EXPECT_EQ(modules_of(graph),
            (std::vector<std::string>{"embedding", "between", "between", "head", ""}));
}

TEST(CaptureRecord, DividesOperatorsBetweenElementsOfAListWhereTheFewestBytesPass) {
  // In half precision, an RMS norm begins with operators without parameters that make fp32 tensors.
  models::LLaMA net(
      models::LLaMAOptions{.vocabulary = 20, .sequence = 8, .hidden = 8, .layers = 3, .heads = 2});
  net->to(torch::kBFloat16);
  const Graph graph =
      captured({net.ptr(),
                [net](const Tensors& x) mutable -> Tensors { return {net->forward(x[0]).sum()}; },
                {torch::randint(20, {2, 8})}});
  const std::vector<std::int64_t> across = graph::bytes_across(graph);
  constexpr std::int64_t kSizeOfFeatures = 256;  // [2, 8, 8] in 2 bytes
  int beginnings = 0;
  for (int i = 1; i < graph.num_nodes(); ++i) {
    const std::string& before = graph.node(i - 1).module;
    const std::string& module = graph.node(i).module;
    for (const std::string block : {"blocks.1", "blocks.2"}) {
      if (!graph::detail::is_within(module, block) || graph::detail::is_within(before, block)) {
        continue;
      }
      EXPECT_EQ(graph.node(i - 1).name(), "aten::add.Tensor") << block;
      EXPECT_EQ(across[static_cast<std::size_t>(i)], kSizeOfFeatures) << block;
      ++beginnings;
    }
  }
  EXPECT_EQ(beginnings, 2);
}

TEST(CaptureRecord, GivesTheSumAtTheEndOfABlockToIt) {
  models::GPT net(
      models::GPTOptions{.vocabulary = 20, .sequence = 8, .hidden = 8, .layers = 2, .heads = 2});
  const Graph graph =
      captured({net.ptr(),
                [net](const Tensors& x) mutable -> Tensors { return {net->forward(x[0]).sum()}; },
                {torch::randint(20, {2, 8})}});
  for (int i = 1; i < graph.num_nodes(); ++i) {
    if (graph.node(i).module != "blocks.1.norm1") continue;
    EXPECT_EQ(graph.node(i - 1).name(), "aten::add.Tensor");
    EXPECT_EQ(graph.node(i - 1).module, "blocks.0");
  }
  const auto attention = std::ranges::find_if(graph.nodes, [](const Node& node) {
    return node.name() == "aten::scaled_dot_product_attention";
  });
  ASSERT_NE(attention, graph.nodes.end());
  EXPECT_EQ(attention->module, "blocks.0.attention");
  EXPECT_GT(attention->flops, 0);
}

TEST(CaptureRecord, LeavesNoTrace) {
  const Subject subject = classifier();
  eager(subject);
  subject.forward(subject.inputs)[0].backward();
  torch::manual_seed(11);
  const at::Tensor random = at::detail::getDefaultCPUGenerator().get_state();
  Tensors values;
  std::vector<std::int64_t> versions;
  std::vector<const void*> memory;
  for (const at::Tensor& tensor : subject.module->parameters()) {
    values.push_back(tensor.grad().clone());
    versions.push_back(tensor._version());
    memory.push_back(tensor.data_ptr());
  }
  for (const at::Tensor& tensor : subject.module->buffers()) values.push_back(tensor.clone());
  captured(subject);
  std::size_t i = 0;
  for (const at::Tensor& tensor : subject.module->parameters()) {
    EXPECT_EQ(tensor._version(), versions[i]);
    EXPECT_EQ(tensor.data_ptr(), memory[i]);
    EXPECT_TRUE(torch::equal(tensor.grad(), values[i++]));
  }
  for (const at::Tensor& tensor : subject.module->buffers()) {
    EXPECT_TRUE(torch::equal(tensor, values[i++]));
  }
  EXPECT_TRUE(torch::equal(random, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(CaptureRecord, CallsNoHookOfAParameter) {
  const Subject subject = classifier();
  int calls = 0;
  for (const at::Tensor& parameter : subject.module->parameters()) {
    parameter.register_hook([&](const at::Tensor& gradient) {
      ++calls;
      EXPECT_FALSE(gradient.is_meta());
    });
  }
  captured(subject);
  EXPECT_EQ(calls, 0);
  subject.forward(subject.inputs)[0].backward();
  EXPECT_EQ(calls, 6);
}

TEST(CaptureRecord, TakesMetaInputs) {
  Subject subject = classifier();
  const Graph whole = captured(subject);
  for (at::Tensor& input : subject.inputs) input = torch::empty_like(input, at::kMeta);
  EXPECT_EQ(names_of(captured(subject)), names_of(whole));
}

TEST(CaptureRecord, CanLeaveBackwardOut) {
  const Subject subject = classifier();
  const Graph graph =
      graph::capture(*subject.module, subject.forward, subject.inputs, {.backward = false});
  for (const Node& node : graph.nodes) EXPECT_EQ(node.backward_flops, 0);
  EXPECT_GT(graph.nodes[0].flops, 0);
}

TEST(Piece, KeepsBuffersWhereAsked) {
  const Subject subject = classifier();
  const auto graph = std::make_shared<const Graph>(captured(subject));
  const graph::Piece piece(graph, 0, graph->num_nodes(), *subject.module);
  ASSERT_EQ(piece.written_buffers().size(), 3U);
  const at::Tensor mean = subject.module->named_buffers()["1.running_mean"];
  const at::Tensor before = mean.clone();
  piece.run(subject.inputs, {.keep_buffers = true});
  EXPECT_TRUE(torch::equal(mean, before));
  piece.run(subject.inputs);
  EXPECT_FALSE(torch::equal(mean, before));
}

TEST(Piece, LetsGoOfWhatIsNotNeeded) {
  struct Watched : torch::nn::Module {};
  const Subject subject = {std::make_shared<Watched>(),
                           [](const Tensors& x) -> Tensors {
                             at::Tensor h = x[0];
                             for (int i = 0; i < 20; ++i) h = h + 1;
                             return {h};
                           },
                           {torch::zeros({1 << 20})}};
  const auto graph = std::make_shared<const Graph>(captured(subject));
  const graph::Piece piece(graph, 0, graph->num_nodes(), *subject.module);
  const Tensors results = piece.run(subject.inputs);
  EXPECT_EQ(results[0][0].item<float>(), 20);
}

}  // namespace
}  // namespace trireme::test
