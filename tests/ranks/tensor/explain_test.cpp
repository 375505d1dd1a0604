// SPDX-License-Identifier: Apache-2.0
// What explain says before anything runs is what happens when the same module runs: operators,
// layouts, collectives and bytes.
#include <trireme/predict/explain.h>

#include <models/gpt.h>
#include <trireme/base/error.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/distribute_module.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/dry_run.h>

#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/tensor/explained_mlp.h>
#include <tests/ranks/tensor/language_model.h>
#include <tests/ranks/tensor/sent_collectives.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using predict::explain;
using predict::ExplainedCommunication;
using predict::ExplainedOperator;
using predict::Explanation;
using tensor::DryRun;
using test::Mlp;
using test::plan_of;
using test::usage_error;
using torch::Tensor;

// Projections apart, so that columns are heads.
struct AttentionImpl : torch::nn::Module {
  torch::nn::Linear query = register_module("query", torch::nn::Linear(16, 16));
  torch::nn::Linear key = register_module("key", torch::nn::Linear(16, 16));
  torch::nn::Linear value = register_module("value", torch::nn::Linear(16, 16));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(16, 16));
  Tensor forward(const Tensor& x) {
    const auto by_head = [&](torch::nn::Linear& projection) {
      return projection(x).unflatten(-1, {4, -1}).transpose(1, 2);
    };
    const auto mixed = torch::scaled_dot_product_attention(by_head(query), by_head(key),
                                                           by_head(value), {}, 0.0, true);
    return output(mixed.transpose(1, 2).flatten(2));
  }
};
TORCH_MODULE(Attention);

// Norms after attention and MLP as in BERT, a head over the vocabulary.
struct EncoderImpl : torch::nn::Module {
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(40, 16));
  Attention attention = register_module("attention", Attention());
  torch::nn::LayerNorm norm1 =
      register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
  Mlp mlp = register_module("mlp", Mlp());
  torch::nn::LayerNorm norm2 =
      register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(16, 40));
  Tensor forward(const Tensor& tokens) {
    Tensor x = words(tokens);
    x = norm1(x + attention(x));
    x = norm2(x + mlp(x));
    return torch::cross_entropy_loss(head(x).flatten(0, 1), tokens.flatten());
  }
};
TORCH_MODULE(Encoder);

ParameterLayouts layouts_of_encoder() {
  return join({vocabulary_parallel("words"), column_parallel("attention.query"),
               column_parallel("attention.key"), column_parallel("attention.value"),
               row_parallel("attention.output"), column_parallel("mlp.up"),
               row_parallel("mlp.down"), vocabulary_parallel("head")});
}

std::vector<ExplainedCommunication> communication(const Explanation& explanation,
                                                  bool is_backward) {
  std::vector<ExplainedCommunication> all;
  for (const ExplainedOperator& op : explanation.operators) {
    if (op.is_backward != is_backward) continue;
    all.insert(all.end(), op.communication.begin(), op.communication.end());
  }
  return all;
}

Tensor tokens() { return (torch::arange(4 * 6) * 7 + 3).remainder(10).reshape({4, 6}); }

// -- against a run -----------------------------------------------------------------------------

// What autograd does with gradients that are done is no part of the explanation.
std::vector<std::string> lines_of(const std::vector<tensor::DryRunCall>& calls) {
  std::vector<std::string> lines;
  for (const tensor::DryRunCall& call : calls) {
    if (call.node != "torch::autograd::AccumulateGrad") lines.push_back(test::line_of(call));
  }
  return lines;
}

std::vector<std::string> lines_of(const Explanation& explanation) {
  std::vector<tensor::DryRunCall> calls;
  for (const ExplainedOperator& op : explanation.operators) calls.push_back(op.call);
  return lines_of(calls);
}

// What the parameters' gradients send along the axes that are not data.
std::vector<std::string> gradients_of(const Explanation& explanation) {
  std::vector<std::string> lines;
  for (const ExplainedCommunication& line : explanation.gradients) {
    if (line.axis == "data") continue;
    lines.push_back(
        join_message(line.collective, " on ", line.axis, ", ", std::llround(line.bytes), " bytes"));
  }
  return lines;
}

// The same module on ranks: every operator has the layouts that were predicted and sends what was.
template <typename Model>
void expect_as_explained(const std::function<Model()>& make, const ParameterLayouts& layouts,
                         const std::function<Tensor(Model&)>& loss_of) {
  testing::engine_of_ranks = "gloo";
  for (const std::vector<MeshAxis>& axes : std::vector<std::vector<MeshAxis>>{
           {{"tensor", 2}}, {{"tensor", 4}}, {{"rows", 2}, {"tensor", 2}}}) {
    Model explained = make();
    ParameterLayouts on_all_axes = layouts;
    for (const MeshAxis& axis : axes) {
      if (axis.name == "rows") on_all_axes.push_back({"*", {{"rows", Replicate{}}}});
    }
    const Explanation explanation =
        explain(*explained, plan_of(axes, on_all_axes), [&] { return loss_of(explained); });
    std::int64_t ranks = 1;
    for (const MeshAxis& axis : axes) ranks *= axis.size;
    testing::run_ranks(static_cast<int>(ranks), [&](const comm::Group& group) {
      Model model = make();
      const DeviceMesh mesh(group, axes);
      distribute_module(*model, mesh, layouts);
      test::SentCollectives sent(mesh);
      {
        const DryRun beside(DryRun::Mode::kBeside, [&](const tensor::DryRunCall& call,
                                                       c10::ArrayRef<c10::IValue> results) {
          EXPECT_EQ(sent.take(), test::predicted(call, mesh)) << test::line_of(call);
          if (results.size() != 1 || !results[0].isTensor()) return;
          EXPECT_EQ(layout_of(results[0].toTensor()).to_string(),
                    call.outputs.front().layout.to_string());
        });
        loss_of(model).backward();
        if (group.rank() == 0) {
          EXPECT_EQ(lines_of(beside.calls()), lines_of(explanation));
        }
      }
      for (const auto& parameter : model->parameters()) {
        detail::redistribute_gradient(parameter);
      }
      EXPECT_EQ(sent.take(), gradients_of(explanation));
    });
  }
}

TEST(Explain, SaysWhatAnEncoderDoes) {
  expect_as_explained<Encoder>(
      [] {
        Encoder model;
        model->to(torch::kDouble);
        return model;
      },
      layouts_of_encoder(), [](Encoder& model) { return model(tokens()); });
}

TEST(Explain, SaysWhatALanguageModelDoes) {
  expect_as_explained<test::LanguageModel>(
      test::seeded, test::megatron(),
      [](test::LanguageModel& model) { return test::loss_of(model, tokens()); });
}

TEST(Explain, SaysWhatAConvolutionalNetDoes) {
  using torch::nn::Sequential;
  expect_as_explained<Sequential>(
      [] {
        return Sequential(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)),
            torch::nn::BatchNorm2d(8), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
            torch::nn::MaxPool2d(2), torch::nn::Conv2d(8, 6, 1), torch::nn::Flatten(),
            torch::nn::Dropout(0.25), torch::nn::Linear(6 * 4, 10));
      },
      {{"0.weight", {{"tensor", Shard{0}}}},
       {"1.*", {{"tensor", Replicate{}}}},
       {"4.weight", {{"tensor", Shard{1}}}}},
      [](Sequential& model) {
        const Tensor images = torch::arange(4 * 3 * 16).mul(0.1).sin().reshape({4, 3, 4, 4});
        return torch::cross_entropy_loss(model->forward(images), torch::arange(4));
      });
}

// Its attention asks whether query, key and value are equal, which was refused.
TEST(Explain, SaysWhatLibTorchsTransformerDoes) {
  using torch::nn::TransformerEncoder;
  expect_as_explained<TransformerEncoder>(
      [] {
        torch::manual_seed(3);
        TransformerEncoder model(torch::nn::TransformerEncoderOptions(
            torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0), 2));
        model->to(torch::kDouble);
        return model;
      },
      join({column_parallel("layers.*.linear1"), row_parallel("layers.*.linear2")}),
      [](TransformerEncoder& model) {
        const Tensor x = torch::arange(4 * 3 * 8, torch::kDouble).mul(0.1).sin().reshape({4, 3, 8});
        return model->forward(x).square().mean();
      });
}

TEST(Explain, TakesAttentionOverOtherKeys) {
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2));
  const Plan plan = plan_of({{"tensor", 2}}, {{"*", {{"tensor", Replicate{}}}}});
  const Explanation explanation = explain(*attention, plan, [&] {
    return std::get<0>(
        attention(torch::ones({5, 3, 8}), torch::ones({4, 3, 8}), torch::ones({4, 3, 8})));
  });
  EXPECT_TRUE(std::ranges::any_of(explanation.operators, [](const ExplainedOperator& op) {
    return op.is_backward && op.flops() > 0;
  }));
}

// Along data a step sends the sums of gradients, and one number for every parameter besides.
TEST(Explain, SaysWhatTravelsAlongData) {
  testing::engine_of_ranks = "gloo";
  const Plan plan = plan_of({{"data", 2}, {"tensor", 2}}, test::megatron());
  test::LanguageModel explained = test::seeded();
  const Explanation explanation =
      explain(*explained, plan, [&] { return test::loss_of(explained, tokens()); });
  double predicted = 0;
  for (const ExplainedCommunication& line : explanation.gradients) {
    if (line.axis == "data") predicted += line.bytes;
  }
  testing::run_ranks(4, [&](const comm::Group& group) {
    test::LanguageModel model = test::seeded();
    Parallelized parallel = parallelize(*model, plan, group);
    const DeviceMesh data(parallel.data_group(), {{"data", 2}});
    test::SentCollectives sent(data);
    test::loss_of(model, tokens()).backward();
    const auto num_parameters = static_cast<double>(model->parameters().size());
    double bytes = 0;
    for (const std::string& line : sent.take()) {
      if (!line.starts_with("all-reduce on data, ")) continue;
      bytes += std::stod(line.substr(std::string("all-reduce on data, ").size()));
    }
    EXPECT_GE(bytes, predicted);
    EXPECT_LE(bytes, predicted + (num_parameters + 2) * 8 + 64);
  });
}

// -- what is said --------------------------------------------------------------------------------

// An MLP whose input is a parameter, so that its gradient is asked for.
struct LearnedInputImpl : torch::nn::Module {
  Tensor x = register_parameter("x", torch::ones({8, 16}));
  Mlp mlp = register_module("mlp", Mlp());
};
TORCH_MODULE(LearnedInput);

// Columns, then rows: one all-reduce of the output forward, and one of the input's gradient.
TEST(Explain, OfAnMlpIsTheTextbooks) {
  LearnedInput model = deferred([] { return LearnedInput(); });
  const Plan plan = plan_of({{"data", 2}, {"tensor", 4}},
                            join({column_parallel("mlp.up"), row_parallel("mlp.down")}));
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 4}});
  const Explanation explanation = explain(
      *model, plan, [&] { return shard(model->mlp(model->x), Layout::replicated(mesh)); }, mesh);
  const double bytes = 2 * 3 / 4.0 * 8 * 16 * 4;

  const auto forward = communication(explanation, false);
  ASSERT_EQ(forward.size(), 1U);
  EXPECT_EQ(forward[0].collective, "all-reduce");
  EXPECT_EQ(forward[0].axis, "tensor");
  EXPECT_EQ(forward[0].bytes, bytes);
  EXPECT_GT(forward[0].seconds, 0);
  EXPECT_TRUE(communication(explanation, true).empty());

  ASSERT_EQ(explanation.gradients.size(), 2U);
  EXPECT_EQ(explanation.gradients[0].tensor, "gradient of x");
  EXPECT_EQ(explanation.gradients[0].collective, "all-reduce");
  EXPECT_EQ(explanation.gradients[0].bytes, bytes);
  EXPECT_EQ(explanation.gradients[0].asked_by,
            "completes the sum of mm over mlp.up.weight (mlp.up.weight -> Shard(0) on tensor)");

  // A quarter of the weights and of the first bias; in one bucket along data.
  EXPECT_EQ(explanation.bytes, 4 * (8 * 16 + 2 * 16 * 64 + 64 + 16));
  EXPECT_EQ(explanation.bytes_of_rank, 4 * (8 * 16 + (2 * 16 * 64 + 64) / 4 + 16));
  EXPECT_EQ(explanation.gradients[1].collective, "all-reduce");
  EXPECT_EQ(explanation.gradients[1].axis, "data");
  EXPECT_EQ(explanation.gradients[1].bytes, static_cast<double>(explanation.bytes_of_rank));
  EXPECT_EQ(explanation.gradients[1].tensor, "gradients of mlp.down.bias and 4 more");

  double flops = 0;
  for (const ExplainedOperator& op : explanation.operators) {
    if (op.call.name == "aten::addmm") flops += op.flops();
  }
  EXPECT_EQ(flops, 2 * 2 * 8 * 16 * 64 / 4.0);

  // Whole, with leading dims and backward: as many again for each of two gradients.
  const Explanation whole = explain(*model, plan_of({{"tensor", 1}}, {}),
                                    [&] { return model->mlp(model->x.unsqueeze(0)); });
  flops = 0;
  for (const ExplainedOperator& op : whole.operators) {
    if (op.call.name.starts_with("aten::matmul")) flops += op.flops();
  }
  EXPECT_EQ(flops, 3 * 2 * 2 * 8 * 16 * 64);
}

// Two numbers a row instead of the logits.
TEST(Explain, OfAParallelVocabulary) {
  Encoder model;
  const Explanation explanation =
      explain(model, plan_of({{"tensor", 4}}, layouts_of_encoder()), tokens());
  std::vector<std::string> inside;
  for (const ExplainedOperator& op : explanation.operators) {
    for (const ExplainedCommunication& line : op.communication) {
      EXPECT_LE(line.bytes, 2 * 3 / 4.0 * 24 * 16 * 4);
      if (line.tensor == "within") inside.push_back(op.call.name + " " + line.asked_by);
    }
  }
  ASSERT_EQ(inside.size(), 4U);  // maxima and sums of rows; the loss; sums of rows
  for (const std::string& line : inside) {
    EXPECT_NE(line.find("head.weight"), std::string::npos) << line;
  }
}

TEST(Explain, SaysWhoAskedForWhat) {
  struct HintImpl : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 8));
    Layout hint;
  };
  HintImpl model;
  const DeviceMesh mesh = DeviceMesh::unconnected({{"tensor", 2}});
  model.hint = Layout(mesh, {{"tensor", Shard{0}}});
  const Plan plan = plan_of({{"tensor", 2}}, column_parallel("first"));
  const Explanation explanation = explain(
      model, plan, [&] { return std::get<0>(model.first(torch::ones({4, 8})).mul(2).sort(1)); });
  const auto lines = communication(explanation, false);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].asked_by.find("sort takes Shard(0), and "), std::string::npos)
      << lines[0].asked_by;
  EXPECT_NE(lines[0].asked_by.find("first.weight (first.weight -> Shard(0) on tensor)"),
            std::string::npos)
      << lines[0].asked_by;

  const Explanation hinted = explain(
      model, plan, [&] { return shard(model.first(torch::ones({4, 8})), model.hint); }, mesh);
  const auto asked = communication(hinted, false);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].collective, "all-to-all");
  EXPECT_EQ(asked[0].asked_by, "redistribute in the model's code");
  // And backward the way back.
  EXPECT_EQ(communication(hinted, true).front().collective, "all-to-all");
}

TEST(Explain, IsATable) {
  Encoder model;
  const std::string text = to_string(
      explain(model, plan_of({{"data", 2}, {"tensor", 2}}, layouts_of_encoder()), tokens()));
  const std::string reason =
      "completes the sum of matmul over mlp.down.weight (mlp.down.weight -> Shard(1) on tensor)";
  for (const char* part :
       {"mesh data=2, tensor=2; layouts over tensor=2", "forward\n", "backward\n",
        "gradients of parameters\n", "what one rank sends\n", "mlp.down.weight S1", " > ",
        reason.c_str(), "tensor  all-reduce     forward", "data    all-reduce     gradients",
        "one rank has "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

// Layers that say the same are shown once.
TEST(Explain, FoldsWhatRepeatsItself) {
  models::GPT model = deferred([] {
    return models::GPT(models::GPTOptions{
        .vocabulary = 64, .sequence = 8, .hidden = 16, .layers = 12, .heads = 4, .tied = true});
  });
  const Plan plan = plan_of(
      {{"tensor", 2}}, join({vocabulary_parallel("token_embedding"), column_parallel("*.mlp_input"),
                             row_parallel("*.mlp_output")}));
  const std::string text = to_string(explain(*model, plan, [&] {
    const Tensor words = torch::empty({2, 8}, torch::kLong);
    return torch::cross_entropy_loss(model(words.to(torch::kMeta)).flatten(0, 1), words.flatten());
  }));
  EXPECT_NE(text.find(" times:\n"), std::string::npos) << text;
  EXPECT_LT(std::ranges::count(text, '\n'), 200) << text;
  EXPECT_EQ(text.find("blocks.7.mlp_output.weight"), std::string::npos) << text;
}

TEST(Explain, DividesAlongDataByZero) {
  Mlp mlp;
  Plan plan = plan_of({{"data", 4}}, {});
  const auto collectives = [&] {
    const Explanation explanation = explain(mlp, plan, torch::ones({8, 16}));
    std::vector<std::pair<std::string, double>> all;
    for (const ExplainedCommunication& line : explanation.gradients) {
      all.emplace_back(line.collective, line.bytes);
    }
    return all;
  };
  const double bytes = 4 * (2 * 16 * 64 + 64 + 16);
  using Expected = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(collectives(), (Expected{{"all-reduce", bytes * 6 / 4}}));
  plan.zero_level = 2;
  EXPECT_EQ(collectives(),
            (Expected{{"reduce-scatter", bytes * 3 / 4}, {"all-gather", bytes * 3 / 4}}));
  plan.zero_level = 3;
  EXPECT_EQ(collectives(), (Expected{{"reduce-scatter", bytes * 3 / 4},
                                     {"all-gather", bytes * 3 / 4},
                                     {"all-gather", bytes * 3 / 4}}));
  plan.zero_level = 0;
  plan.data_parallel = false;
  EXPECT_EQ(collectives(), Expected());
}

// -- the module stays as it was ------------------------------------------------------------------

struct State {
  std::vector<Tensor> values;
  std::vector<const void*> memory;
  std::vector<std::uint32_t> versions;
  std::vector<Tensor> gradients;
};

State state_of(const torch::nn::Module& module) {
  State state;
  std::vector<Tensor> all = module.parameters();
  for (const Tensor& buffer : module.buffers()) all.push_back(buffer);
  for (const Tensor& tensor : all) {
    EXPECT_FALSE(has_layout(tensor));
    state.values.push_back(tensor.detach().clone());
    state.memory.push_back(tensor.data_ptr());
    state.versions.push_back(static_cast<std::uint32_t>(tensor._version()));
    state.gradients.push_back(tensor.grad());
  }
  return state;
}

void expect_same(const State& before, const State& after) {
  EXPECT_TRUE(test::all_equal(before.values, after.values));
  EXPECT_EQ(before.memory, after.memory);
  EXPECT_EQ(before.versions, after.versions);
  for (std::size_t i = 0; i < before.gradients.size(); ++i) {
    EXPECT_TRUE(before.gradients[i].is_same(after.gradients[i])) << i;
  }
}

struct WithBufferImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  Tensor forward(const Tensor& x) { return norm(first(x)); }
};
TORCH_MODULE(WithBuffer);

TEST(Explain, LeavesTheModuleAsItWas) {
  WithBuffer model;
  const Tensor x = torch::arange(32, torch::kFloat).reshape({4, 8}).sin();
  model(x).square().mean().backward();  // gradients and running statistics
  int num_hooks = 0;
  model->first->weight.register_hook([&](const Tensor& gradient) {
    ++num_hooks;
    return gradient;
  });
  const State before = state_of(*model);
  const Plan plan = plan_of({{"tensor", 2}}, column_parallel("first"));
  EXPECT_FALSE(explain(model, plan, x).operators.empty());
  expect_same(before, state_of(*model));

  EXPECT_NE(usage_error([&] {
              explain(*model, plan, [&] {
                const Tensor loss = model(x).square().mean();
                model->first->weight.detach().mul_(loss.item());
                return loss;
              });
            }).find("aten::_local_scalar_dense"),
            std::string::npos);
  expect_same(before, state_of(*model));
  EXPECT_THROW(explain(*model, plan,
                       [&]() -> Tensor {
                         model(x).sum().backward();
                         throw std::runtime_error("by the user");
                       }),
               std::runtime_error);
  expect_same(before, state_of(*model));

  // It trains on: the hook is there, and requires_grad.
  num_hooks = 0;
  model->zero_grad();
  model(x).square().mean().backward();
  EXPECT_EQ(num_hooks, 1);
  EXPECT_TRUE(model->first->weight.grad().defined());
}

TEST(Explain, WithoutGradientsIsForwardAlone) {
  WithBuffer model;
  const Plan plan = plan_of({{"tensor", 2}}, column_parallel("first"));
  const torch::NoGradGuard no_grad;
  const Explanation explanation = explain(model, plan, torch::ones({4, 8}));
  EXPECT_TRUE(communication(explanation, true).empty());
  EXPECT_TRUE(explanation.gradients.empty());
  EXPECT_EQ(to_string(explanation).find("backward"), std::string::npos);
}

TEST(Explain, RefusesWhatItCannotSay) {
  Mlp mlp;
  const Tensor x = torch::ones({4, 16});
  const auto refused = [&](const Plan& plan, const DeviceMesh& mesh = {}) {
    return usage_error([&] { explain(*mlp, plan, [&] { return mlp(x); }, mesh); });
  };
  EXPECT_NE(refused(Plan{}).find("has no mesh"), std::string::npos);
  EXPECT_NE(refused(plan_of({{"tensor", 2}}, column_parallel("middle"))).find("middle.weight"),
            std::string::npos);
  EXPECT_NE(refused(plan_of({{"rows", 2}}, column_parallel("up"))).find("rows"), std::string::npos);
  EXPECT_NE(refused(plan_of({{"data", 2}, {"tensor", 2}}, column_parallel("up")),
                    DeviceMesh::unconnected({{"tensor", 4}}))
                .find("explain got a mesh of tensor=4"),
            std::string::npos);
  EXPECT_NE(refused(plan_of({{"pipe", 4}}, {})).find("stages"), std::string::npos);
  const Plan plan = plan_of({{"tensor", 1}}, {});
  const DeviceMesh one(comm::Group::self(), {{"tensor", 1}});
  distribute_module(*mlp, one, {});
  EXPECT_NE(refused(plan).find("is distributed already"), std::string::npos);
}

}  // namespace
}  // namespace trireme
