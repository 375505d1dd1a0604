// SPDX-License-Identifier: Apache-2.0
// Pipelines whose stages are shared by ranks along a tensor axis: within rounding what one process
// does, and where sums are the same ones, the bits of tensor parallelism alone.
#include <trireme/base/error.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/buckets/divide.h>
#include <trireme/parallel/distribute_module.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/pipeline/tensor_loops.h>
#include <tests/ranks/tensor/language_model.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Alone;
using test::expect_close;
using test::kBound;
using test::language_model_in_double;
using test::Network;
using test::Outcome;
using test::part_of;
using test::plan_of;
using test::ranks_of;
using test::Shared;
using test::train;
using test::usage_error;
using test::whole;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_catching;

constexpr double kDropout = 0.3;

class TensorPipelineOn : public ::testing::TestWithParam<Shared> {};

TEST_P(TensorPipelineOn, TrainsLikeOneProcess) {
  const Shared& setting = GetParam();
  const Outcome expected =
      Alone(language_model_in_double(setting.is_tied)).train(arranged_of(setting));
  run_ranks(ranks_of(setting), [&](const comm::Group& group) {
    const Outcome got = train(language_model_in_double(setting.is_tied), setting, group);
    expect_close(got.parameters, expected.parameters, "parameter");
    for (std::size_t rank = 0; rank < got.losses.size(); ++rank) {
      if (got.losses[rank].empty()) continue;
      expect_close(got.losses[rank], expected.losses[rank], "loss of step");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, TensorPipelineOn,
    ::testing::Values(
        Shared{.mesh = {{"pipe", 2}, {"tensor", 2}}},
        Shared{.mesh = {{"tensor", 2}, {"pipe", 2}}, .schedule = "zb-h1"},
        Shared{.mesh = {{"pipe", 2}, {"tensor", 2}}, .is_tied = true},
        Shared{.mesh = {{"pipe", 2}, {"tensor", 2}}, .schedule = "zb-h1", .is_tied = true},
        Shared{.mesh = {{"pipe", 2}, {"tensor", 2}}, .schedule = "interleaved"},
        Shared{.mesh = {{"pipe", 1}, {"tensor", 2}}},
        Shared{.mesh = {{"pipe", 2}, {"data", 2}, {"tensor", 2}}},
        Shared{.mesh = {{"data", 2}, {"tensor", 2}, {"pipe", 2}},
               .schedule = "zb-h1",
               .is_tied = true},
        Shared{.mesh = {{"pipe", 2}, {"data", 2}, {"tensor", 2}}, .zero_level = 1},
        Shared{.mesh = {{"pipe", 2}, {"data", 2}, {"tensor", 2}}, .zero_level = 2, .is_tied = true},
        Shared{.mesh = {{"pipe", 2}, {"data", 2}, {"tensor", 2}},
               .schedule = "zb-h1",
               .zero_level = 3,
               .is_tied = true}));

// -- bits ---------------------------------------------------------------------------------------

// Two blocks, with a place between them that code outside may change.
struct DecoderImpl : torch::nn::Module {
  explicit DecoderImpl(double dropout = 0)
      : words(register_module("words", torch::nn::Embedding(10, 8))),
        first(register_module("first", test::Block())),
        second(register_module("second", test::Block())),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))),
        head(register_module("head", torch::nn::Linear(8, 10))) {
    test::fill(*this);
  }
  torch::Tensor loss(const torch::Tensor& tokens) {
    const auto given = tokens.narrow(1, 0, tokens.size(1) - 1);
    const auto targets = tokens.narrow(1, 1, tokens.size(1) - 1);
    torch::Tensor x = drop(first(drop(words(given))));
    if (between) x = between(x);
    const auto logits = head(norm(drop(second(x))));
    return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  }

  torch::nn::Embedding words;
  test::Block first, second;
  torch::nn::Dropout drop;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  std::function<torch::Tensor(const torch::Tensor&)> between;
};
TORCH_MODULE(Decoder);

ParameterLayouts layouts_of_decoder() {
  return join({vocabulary_parallel("words"), column_parallel("*.up"), row_parallel("*.down"),
               vocabulary_parallel("head")});
}

Plan plan_of_decoder(std::vector<MeshAxis> mesh, const std::string& schedule = "1f1b") {
  Plan plan;
  plan.mesh = std::move(mesh);
  plan.stages = {{"words", 0}, {"second", 1}};
  if (stage_ranks(plan) == 1) plan.stages.clear();
  plan.layouts = layouts_of_decoder();
  plan.schedule = schedule;
  plan.micro_batches = 2;
  return plan;
}

graph::Forward forward_of(const Decoder& net) {
  return
      [net](const auto& in) -> std::vector<torch::Tensor> { return {Decoder(net)->loss(in[0])}; };
}

torch::Tensor tokens_of(int step) {
  return (torch::arange(8 * 6).reshape({8, 6}) * (step + 3)).remainder(10);
}

// Losses of steps, and this rank's part of each parameter after them.
struct Seen {
  std::vector<torch::Tensor> losses;
  std::vector<torch::Tensor> parts;
};

std::vector<torch::Tensor> parts_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : module.parameters()) {
    parts.push_back(detail::memory_of(parameter).detach().clone());
  }
  return parts;
}

// By hand, with what goes between the stages made whole where the pipeline does.
Seen train_by_tensor_alone(const comm::Group& group, int steps) {
  Decoder net;
  const DeviceMesh mesh(group, {{"tensor", group.size()}});
  distribute_module(*net, mesh, layouts_of_decoder());
  net->between = [layout = Layout::replicated(mesh)](const torch::Tensor& x) {
    return shard(x, layout);
  };
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const at::Tensor two = detail::divisor_for(torch::kFloat, 2);
  Seen seen;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    torch::Tensor sum;
    for (const torch::Tensor& tokens : tokens_of(step).chunk(2)) {
      const torch::Tensor loss = net->loss(tokens);
      loss.backward();
      const torch::Tensor value = full(loss.detach());
      sum = sum.defined() ? sum + value : value;
    }
    seen.losses.push_back(sum / 2);
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : net->parameters()) {
      detail::redistribute_gradient(parameter);
      const at::Tensor memory = detail::memory_of(parameter.grad());
      detail::divide(memory, memory, two);
    }
    optimizer.step();
  }
  seen.parts = parts_of(*net);
  return seen;
}

Seen train_in_stages(const comm::Group& group, const Plan& plan, int steps,
                     Decoder net = Decoder()) {
  TrainingStep pipeline(*net, forward_of(net), plan, group);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Seen seen;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    seen.losses.push_back(pipeline.step({tokens_of(step)}).loss.clone());
    optimizer.step();
  }
  pipeline.gather_parameters();
  seen.parts = parts_of(*net);
  return seen;
}

TEST(TensorPipeline, HasTheBitsOfTensorParallelismAlone) {
  constexpr int kSteps = 3;
  std::vector<Seen> expected(2);
  run_ranks(2, [&](const comm::Group& group) {
    expected[static_cast<std::size_t>(group.rank())] = train_by_tensor_alone(group, kSteps);
  });
  run_ranks(4, [&](const comm::Group& group) {
    const Seen got = train_in_stages(group, plan_of_decoder({{"pipe", 2}, {"tensor", 2}}), kSteps);
    const Seen& alone = expected[static_cast<std::size_t>(group.rank() % 2)];
    test::expect_same_bits(got.losses, alone.losses, "loss of step");
    test::expect_same_bits(got.parts, alone.parts, "part of parameter");
  });
}

// The same operators run again.
TEST(TensorPipeline, HasTheSameBitsWithRecomputation) {
  std::vector<Seen> expected(4);
  for (const bool recomputes : {false, true}) {
    run_ranks(4, [&](const comm::Group& group) {
      Plan plan = plan_of_decoder({{"pipe", 2}, {"tensor", 2}});
      if (recomputes) plan.recompute = {"first", "second"};
      const Seen got = train_in_stages(group, plan, 2, Decoder(kDropout));
      Seen& known = expected[static_cast<std::size_t>(group.rank())];
      if (!recomputes) known = got;
      test::expect_same_bits(got.losses, known.losses, "loss of step");
      test::expect_same_bits(got.parts, known.parts, "part of parameter");
    });
  }
}

// What ZeRO cuts along data are parts, whose elements it steps alone.
TEST(TensorPipeline, HasTheSameBitsWithZero) {
  std::vector<Outcome> expected(8);
  for (const int zero_level : {0, 1, 2, 3}) {
    const Shared setting{.mesh = {{"pipe", 2}, {"data", 2}, {"tensor", 2}},
                         .zero_level = zero_level,
                         .is_tied = true,
                         .rows = 3};
    run_ranks(8, [&](const comm::Group& group) {
      Outcome got = train(language_model_in_double(/*is_tied=*/true), setting, group);
      Outcome& known = expected[static_cast<std::size_t>(group.rank())];
      if (zero_level == 0) {
        known = std::move(got);
      } else {
        test::expect_same_bits(got, known);
      }
    });
  }
}

// Masks follow from the place of an element in the whole tensor.
TEST(TensorPipeline, DropsTheSameOnAnyMesh) {
  std::vector<torch::Tensor> expected;
  for (const std::vector<MeshAxis>& mesh : {std::vector<MeshAxis>{{"pipe", 1}, {"tensor", 1}},
                                            {{"pipe", 2}, {"tensor", 1}},
                                            {{"pipe", 1}, {"tensor", 2}},
                                            {{"pipe", 2}, {"tensor", 2}}}) {
    torch::manual_seed(1);
    run_ranks(ranks_of({.mesh = mesh}), [&](const comm::Group& group) {
      Decoder net(kDropout);
      net->to(torch::kDouble);
      const Seen got = train_in_stages(group, plan_of_decoder(mesh), 3, net);
      if (group.size() == 1) expected = got.losses;
      expect_close(got.losses, expected, "loss of step");
    });
  }
  // And something was dropped.
  Decoder plain;
  plain->to(torch::kDouble);
  EXPECT_FALSE(torch::allclose(plain->loss(tokens_of(0)), expected[0], 1e-3, 1e-3));
}

// -- what a loop uses ---------------------------------------------------------------------------

TEST(TensorPipeline, GivesGradientsInTheirLayouts) {
  const Network plain = language_model_in_double(/*is_tied=*/true);
  plain.forward(plain.batch(6, 0))[0].backward();
  run_ranks(4, [&](const comm::Group& group) {
    const Shared setting{.mesh = {{"pipe", 2}, {"tensor", 2}}, .is_tied = true};
    const Network network = language_model_in_double(/*is_tied=*/true);
    TrainingStep pipeline(*network.module, network.forward, plan_of(setting, network), group);
    const StepOutput step = pipeline.step(network.batch(6, 0), {.report = true});
    EXPECT_TRUE(step.report.has_value());
    EXPECT_FALSE(has_layout(step.loss));
    EXPECT_EQ(pipeline.parallelized().mesh().to_string(), "tensor=2");
    int num_own = 0;
    for (const Parallelized::Part& part : pipeline.parallelized().parts()) {
      EXPECT_TRUE(has_layout(part.parameter)) << part.name;
      ASSERT_EQ(part.parameter.grad().defined(), part.is_own) << part.name;
      if (!part.is_own) continue;
      ++num_own;
      EXPECT_EQ(layout_of(part.parameter.grad()), layout_of(part.parameter)) << part.name;
      const auto expected = plain.module->named_parameters()[part.name].grad();
      EXPECT_TRUE(torch::allclose(full(part.parameter.grad()), expected, kBound, kBound))
          << part.name;
    }
    EXPECT_GT(num_own, 10);
  });
}

TEST(TensorPipeline, ClipsByTheNormOfAllStagesAndParts) {
  const Network plain = language_model_in_double(/*is_tied=*/true);
  torch::optim::SGD plain_optimizer(plain.module->parameters(), 0.1);
  plain.forward(plain.batch(12, 0))[0].backward();
  const double expected = global_norm(plain_optimizer);
  const double largest = global_maximum(plain_optimizer);
  for (const int zero_level : {0, 2}) {
    run_ranks(8, [&](const comm::Group& group) {
      const Shared setting{.mesh = {{"pipe", 2}, {"data", 2}, {"tensor", 2}},
                           .zero_level = zero_level,
                           .is_tied = true};
      const Network network = language_model_in_double(/*is_tied=*/true);
      torch::optim::SGD optimizer(network.module->parameters(), 0.1);
      TrainingStep pipeline(*network.module, network.forward, plan_of(setting, network), group);
      pipeline.shard(optimizer);
      const auto batch = network.batch(12, 0);
      static_cast<void>(pipeline.step(part_of(batch, pipeline.data_group().rank(), 2)));
      const Sharing sharing = pipeline.sharing();
      EXPECT_NEAR(global_maximum(optimizer, sharing), largest, kBound);
      EXPECT_NEAR(clip_by_global_norm(optimizer, 0.5 * expected, sharing).item<double>(), expected,
                  kBound);
      EXPECT_NEAR(global_norm(optimizer, sharing), 0.5 * expected, 1e-5);
    });
  }
}

TEST(TensorPipeline, EvaluatesLikeOneProcess) {
  const Network plain = language_model_in_double(/*is_tied=*/false);
  const auto evaluated = [](const Network& network) {
    auto* const net = network.module->as<models::GPTImpl>();
    return [net](const auto& in) -> std::vector<torch::Tensor> {
      const auto logits = net->forward(in[0]);
      return {torch::cross_entropy_loss(logits.flatten(0, 1), in[1].flatten()), logits};
    };
  };
  const auto batch = plain.batch(6, 0);
  plain.module->eval();
  const auto expected = evaluated(plain)(batch);
  run_ranks(4, [&](const comm::Group& group) {
    const Network network = language_model_in_double(/*is_tied=*/false);
    TrainingStep pipeline(*network.module, evaluated(network),
                          plan_of({.mesh = {{"pipe", 2}, {"tensor", 2}}}, network), group);
    for (int time = 0; time < 2; ++time) {
      const auto [loss, results] = pipeline.evaluate(batch, {.share_results = true});
      EXPECT_NEAR(loss.item<double>(), expected[0].item<double>(), kBound);
      ASSERT_EQ(results.size(), 1U);
      EXPECT_FALSE(has_layout(results[0]));
      expect_close(results, {expected[1]}, "result");
    }
  });
}

// Running statistics are distributed tensors that forward writes to.
TEST(TensorPipeline, KeepsBuffersLikeOneProcess) {
  const auto make = [] {
    Network network = test::residual_net();
    network.module->to(torch::kDouble);
    network.batch = [batch = network.batch](std::int64_t rows, std::int64_t step) {
      auto tensors = batch(rows, step);
      tensors[0] = tensors[0].to(torch::kDouble);
      return tensors;
    };
    return network;
  };
  const Outcome expected =
      Alone(make()).train({.data = 2, .micro_batches = 3, .optimizer = "sgd", .rows = 6});
  run_ranks(8, [&](const comm::Group& group) {
    const Network network = make();
    Plan plan;
    plan.mesh = {{"data", 2}, {"pipe", 2}, {"tensor", 2}};
    plan.stages = {{"head", 0}, {"blocks.1", 1}};
    plan.micro_batches = 3;
    plan.layouts = {{"blocks.*.convolution.weight", {{"tensor", Shard(0)}}},
                    {"classifier.weight", {{"tensor", Shard(1)}}}};
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    const auto optimizer = test::make_optimizer("sgd", network.module->parameters());
    const int rank = pipeline.data_group().rank();
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      static_cast<void>(pipeline.step(part_of(network.batch(12, step), rank, 2)));
      optimizer->step();
    }
    pipeline.gather_parameters();
    expect_close(whole(network.module->parameters()), expected.parameters, "parameter");
    const auto buffers = whole(network.module->buffers());
    if (rank == 0) expect_close(buffers, expected.buffers, "buffer");
  });
}

// -- mistakes -----------------------------------------------------------------------------------

std::string error_of(int ranks, const std::function<void(const comm::Group&)>& mistake) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const comm::Group& group) {
    messages[static_cast<std::size_t>(group.rank())] = usage_error([&] { mistake(group); });
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  return messages[0];
}

std::string refused(const std::function<void(Plan&)>& change) {
  return error_of(4, [&](const comm::Group& group) {
    Decoder net;
    Plan plan = plan_of_decoder({{"pipe", 2}, {"tensor", 2}});
    change(plan);
    const TrainingStep pipeline(*net, forward_of(net), plan, group);
  });
}

TEST(TensorPipeline, RefusesAxesAndBudgetsThatMeanNothing) {
  EXPECT_THAT(refused([](Plan& plan) {
                plan.mesh = {{"pipe", 2}, {"rows", 2}};
                plan.layouts.clear();
              }),
              AllOf(HasSubstr("no layout names its axis rows"), HasSubstr("plan.layouts")));
  EXPECT_THAT(refused([](Plan& plan) {
                plan.mesh = {{"pipe", 2}, {"rows", 2}};
                plan.layouts = {{"*", {"rows", Replicate{}}}};
              }),
              AllOf(HasSubstr("axis rows of 2 ranks"), HasSubstr("neither pipe nor data"),
                    HasSubstr("plan.layouts")));
  EXPECT_THAT(refused([](Plan& plan) { plan.mesh = {{"pipe", 2}, {"rows", 2}}; }),
              AllOf(HasSubstr("words"), HasSubstr("an axis of the mesh pipe=2, rows=2")));
  EXPECT_THAT(refused([](Plan& plan) { plan.activation_bytes = 1000; }),
              AllOf(HasSubstr("activation_bytes"), HasSubstr("plan.recompute")));
  EXPECT_THAT(
      refused([](Plan& plan) { plan.layouts.push_back({"frist.*", {{"tensor", Shard(0)}}}); }),
      HasSubstr("frist.*"));
}

TEST(TensorPipeline, RefusesWhatIsDistributedAlready) {
  EXPECT_THAT(error_of(2,
                       [](const comm::Group& group) {
                         Decoder net;
                         const DeviceMesh mesh(group, {{"tensor", 2}});
                         distribute_module(*net, mesh, layouts_of_decoder());
                         const TrainingStep pipeline(*net, forward_of(net), {}, group);
                       }),
              AllOf(HasSubstr("words.weight is distributed already"), HasSubstr("plan.layouts")));
}

// A record has no layouts.
TEST(TensorPipeline, RefusesHintsInForward) {
  EXPECT_THAT(error_of(4,
                       [](const comm::Group& group) {
                         Decoder net;
                         const DeviceMesh mesh(group, {{"pipe", 2}, {"tensor", 2}});
                         net->between = [layout = Layout::replicated(mesh.submesh({"tensor"}))](
                                            const torch::Tensor& x) { return shard(x, layout); };
                         TrainingStep pipeline(*net, forward_of(net),
                                               plan_of_decoder({{"pipe", 2}, {"tensor", 2}}),
                                               group);
                         pipeline.prepare({tokens_of(0)});
                       }),
              AllOf(HasSubstr("[tensor: Replicate] on tensor=2"), HasSubstr("leave hints out")));
}

TEST(TensorPipeline, RefusesSparseGradients) {
  EXPECT_THAT(error_of(4,
                       [](const comm::Group& group) {
                         Decoder net;
                         Plan plan = plan_of_decoder({{"pipe", 2}, {"tensor", 2}});
                         plan.sparse_gradients = {"words.weight"};
                         TrainingStep pipeline(*net, forward_of(net), plan, group);
                         pipeline.prepare({tokens_of(0)});
                       }),
              HasSubstr("parameter words.weight has sparse gradients"));
}

// Each rank would take what it has for the batch of all.
TEST(TensorPipeline, RefusesOtherBatchesOnRanksThatShareTheWork) {
  run_ranks(4, [](const comm::Group& group) {
    Decoder net;
    TrainingStep pipeline(*net, forward_of(net), plan_of_decoder({{"pipe", 2}, {"tensor", 2}}),
                          group);
    const std::string message =
        usage_error([&] { static_cast<void>(pipeline.step({tokens_of(group.rank() % 2)})); });
    EXPECT_THAT(message, HasSubstr("ranks differ in the batch of one pipeline"));
  });
}

TEST(TensorPipeline, EndsOnAllRanksWhereOneFails) {
  const auto thrown = run_ranks_catching(4, [](const comm::Group& group) {
    Decoder net;
    TrainingStep pipeline(*net, forward_of(net), plan_of_decoder({{"pipe", 2}, {"tensor", 2}}),
                          group);
    static_cast<void>(pipeline.step({tokens_of(0)}));
    if (group.rank() == 3) {
      net->head->weight.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
        throw std::runtime_error(join_message("no more gradients of ", gradient.dim(), " dims"));
      });
    }
    static_cast<void>(pipeline.step({tokens_of(0)}));
    static_cast<void>(pipeline.step({tokens_of(0)}));
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(testing::message_of<CommError>(thrown[static_cast<std::size_t>(rank)]),
                HasSubstr("no more gradients of 2 dims"))
        << rank;
  }
  EXPECT_THAT(testing::message_of<std::runtime_error>(thrown[3]),
              HasSubstr("no more gradients of 2 dims"));
}

}  // namespace
}  // namespace trireme
