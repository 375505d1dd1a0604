// SPDX-License-Identifier: Apache-2.0
// Models with mixtures of experts whose plan has an axis `expert`, alone and with other axes and
// ZeRO: losses, gradients and trained parameters are those of one process on the rows of all ranks,
// tokens travel by all-to-all, and a rank has only its own experts.
#include <models/mixture.h>
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/monitor/flight_recorder.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/tensor_parallel/distribute_module.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/plan/transformer_layouts.h>
#include <trireme/predict/explain.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/close_tensors.h>
#include <tests/ranks/tensor/mixture_training.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using predict::Explanation;
using ::testing::ElementsAre;
using testing::expect_close;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_ranks;

// Of double precision: sums over rows and experts are made in another order.
constexpr double kBound = 1e-11;
constexpr std::int64_t kTokens = 11;
constexpr std::int64_t kVocabulary = 23;

struct Case {
  std::int64_t rows = 8;
  std::int64_t experts = 4;
  std::int64_t experts_per_token = 2;
  bool flattens = false;  // the logits, before the loss
};

std::string name_of(const Case& one) {
  return join_message(one.rows, " rows, ", one.experts, " experts, ", one.experts_per_token,
                      " per token, ", one.flattens ? "flattened" : "as they are");
}

std::mutex seeding;  // ranks are threads and share the generator

models::MixtureGPT mixture(const Case& one) {
  const std::scoped_lock lock(seeding);
  torch::manual_seed(7);
  models::MixtureGPT model(models::MixtureOptions{
      .gpt = {.vocabulary = kVocabulary, .sequence = 16, .hidden = 16, .layers = 2, .heads = 4},
      .experts = one.experts,
      .experts_per_token = one.experts_per_token});
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  // Larger than at the beginning of a training, so that experts fill up and drop tokens.
  for (auto& parameter : model->parameters()) parameter.mul_(8);
  return model;
}

torch::Tensor tokens_of(std::int64_t first, std::int64_t rows, std::int64_t step = 5) {
  const auto all = torch::arange(first * kTokens, (first + rows) * kTokens) * step;
  return (all + all / kTokens * 3).remainder(kVocabulary).to(torch::kLong).reshape({rows, kTokens});
}

torch::Tensor loss_of(models::MixtureGPT& model, const torch::Tensor& tokens,
                      const torch::Tensor& targets, bool flattens) {
  const auto [logits, balance_loss] = model->forward(tokens);
  const auto loss = flattens ? torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten())
                             : torch::cross_entropy_loss(logits.transpose(1, 2), targets);
  return loss + 0.01 * balance_loss;
}

torch::Tensor loss_of(models::MixtureGPT& model, const Case& one, std::int64_t first,
                      std::int64_t rows) {
  return loss_of(model, tokens_of(first, rows), tokens_of(first, rows, 3), one.flattens);
}

void expect_same_gradients(const models::MixtureGPT& model, const models::MixtureGPT& expected,
                           const std::string& name) {
  const auto parameters = model->named_parameters();
  for (const auto& item : expected->named_parameters()) {
    const auto& gradient = parameters[item.key()].grad();
    ASSERT_TRUE(gradient.defined()) << name << ": " << item.key();
    // Gradients of the biases of keys are zero, but for rounding.
    const auto bound = 1e-13 + kBound * item.value().grad().abs().max().item<double>();
    EXPECT_LE((full(gradient) - item.value().grad()).abs().max().item<double>(), bound)
        << name << ": " << item.key();
  }
}

// One backward of the plan equals one of a single process on the rows of all ranks.
void expect_same(const Case& one, std::vector<MeshAxis> mesh, const comm::Group& group) {
  auto plain = mixture(one);
  auto cut = mixture(one);
  comm::barrier(group);  // parallelize sets the generator of all threads
  const torch::Tensor expected = loss_of(plain, one, 0, one.rows);
  expected.backward();
  Parallelized parallelized = parallelize(*cut, test::plan_of_mixture(cut, std::move(mesh)), group);
  const std::int64_t rows = one.rows / parallelized.data_group().size();
  const auto loss = loss_of(cut, one, parallelized.data_group().rank() * rows, rows);
  loss.backward();
  const std::string name = join_message(name_of(one), " on ", group.size());
  // Parts along `data` are equal, so that means of parts are the mean of all rows.
  const torch::Tensor mean = full(loss.detach()).clone();
  comm::all_reduce(mean, parallelized.data_group());
  expect_close(mean / parallelized.data_group().size(), expected.detach(), kBound, name);
  expect_same_gradients(cut, plain, name);
}

TEST(ExpertParallel, MixturesTrainLikeOneProcess) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [ranks](const comm::Group& group) {
      for (const std::int64_t per_token : {1, 2}) {
        for (const bool flattens : {false, true}) {
          const Case one = {.experts_per_token = per_token, .flattens = flattens};
          expect_same(one, {{"expert", ranks}}, group);
        }
      }
    });
  }
}

// Ranks divide neither the rows nor the experts, or there are fewer of them than ranks.
TEST(ExpertParallel, RanksNeedNotDivideRowsAndExperts) {
  run_ranks(3, [](const comm::Group& group) {
    for (const std::int64_t rows : {2, 6, 7}) {
      for (const std::int64_t experts : {2, 3, 4}) {
        expect_same({.rows = rows, .experts = experts}, {{"expert", 3}}, group);
      }
    }
    expect_same({.rows = 7, .experts = 4, .flattens = true}, {{"expert", 3}}, group);
  });
}

TEST(ExpertParallel, WithOtherAxes) {
  const std::vector<std::vector<MeshAxis>> meshes = {{{"expert", 2}, {"tensor", 2}},
                                                     {{"tensor", 2}, {"expert", 2}},
                                                     {{"expert", 2}, {"context", 2}},
                                                     {{"data", 2}, {"expert", 2}}};
  for (const auto& mesh : meshes) {
    run_ranks(4, [&](const comm::Group& group) {
      expect_same({}, mesh, group);
      expect_same({.rows = 6, .experts = 3}, mesh, group);
    });
  }
  run_ranks(8, [](const comm::Group& group) {
    expect_same({}, {{"data", 2}, {"expert", 2}, {"tensor", 2}}, group);
  });
}

// Each expert is sharded over two ranks as Megatron-LM shards an MLP.
TEST(ExpertParallel, ExpertsMayBeShardedAlongTensor) {
  run_ranks(4, [](const comm::Group& group) {
    const Case one;
    auto plain = mixture(one);
    auto cut = mixture(one);
    comm::barrier(group);
    loss_of(plain, one, 0, one.rows).backward();
    Plan plan = {.mesh = {{"expert", 2}, {"tensor", 2}}};
    const auto add = [&](const char* name, const Placement& along_tensor) {
      plan.layouts.push_back({.pattern = std::string("*.mixture.") + name,
                              .placements = {{"expert", Shard{0}}, {"tensor", along_tensor}}});
    };
    add("input_weight", Shard{2});
    add("input_bias", Shard{2});
    add("output_weight", Shard{1});
    add("output_bias", Replicate{});
    const Parallelized parallelized = parallelize(*cut, plan, group);
    loss_of(cut, one, 0, one.rows).backward();
    expect_same_gradients(cut, plain, "experts along tensor");
    const auto weight = cut->named_parameters()["blocks.1.mixture.input_weight"];
    EXPECT_EQ(to_local(weight.grad()).numel(), weight.numel() / 4);
  });
}

TEST(ExpertParallel, TrainsWithDataParallelismAndZero) {
  const test::MixtureTraining training = {
      .make = [] { return mixture({}); },
      .loss_of = [](models::MixtureGPT& model, std::int64_t begin,
                    std::int64_t rows) { return loss_of(model, {}, begin, rows); },
      .rows = Case().rows};
  run_ranks(4, [&](const comm::Group& group) {
    test::expect_same_training_at_every_zero_level(training, group);
  });
}

TEST(ExpertParallel, TrainingStepRunsItWithAndWithoutStages) {
  for (const bool has_stages : {false, true}) {
    run_ranks(has_stages ? 4 : 2, [&](const comm::Group& group) {
      const Case one = {.flattens = true};
      auto plain = mixture(one);
      auto model = mixture(one);
      Plan plan = test::plan_of_mixture(model, {{"expert", 2}});
      plan.micro_batches = 2;
      plan.recompute = {"blocks.*"};
      if (has_stages) plan.mesh = {{"pipe", 2}, {"expert", 2}};
      comm::barrier(group);  // a TrainingStep draws from the generator of all threads
      const std::vector<at::Tensor> batch = {tokens_of(0, one.rows), tokens_of(0, one.rows, 3)};
      const auto expected = loss_of(plain, batch[0], batch[1], true);
      expected.backward();
      TrainingStep training(
          *model,
          [&](const std::vector<at::Tensor>& in) {
            return std::vector<at::Tensor>{loss_of(model, in[0], in[1], true)};
          },
          plan, group);
      expect_close(training.step(batch).loss, expected.detach(), kBound, "loss");
      for (const auto& item : model->named_parameters()) {
        if (!item.value().grad().defined()) continue;  // of another stage
        const auto& gradient = plain->named_parameters()[item.key()].grad();
        EXPECT_TRUE(torch::allclose(full(item.value().grad()), gradient, kBound, 1e-13))
            << item.key();
      }
    });
  }
}

TEST(ExpertParallel, ARankHasOnlyItsExperts) {
  run_ranks(4, [](const comm::Group& group) {
    const Case one;
    auto model = mixture(one);
    comm::barrier(group);
    const Parallelized parallelized =
        parallelize(*model, test::plan_of_mixture(model, {{"expert", 4}}), group);
    torch::optim::AdamW optimizer(model->parameters(), 1e-3);
    loss_of(model, one, 0, one.rows).backward();
    optimizer.step();
    int stacked = 0;
    const auto elements = [](const at::Tensor& tensor) { return to_local(tensor).numel(); };
    for (const auto& item : model->named_parameters()) {
      const at::Tensor& parameter = item.value();
      const bool is_of_expert = layout_of(parameter)["expert"].is_shard(0);
      const std::int64_t part = is_of_expert ? parameter.numel() / 4 : parameter.numel();
      stacked += is_of_expert ? 1 : 0;
      EXPECT_EQ(elements(parameter), part) << item.key();
      const auto bytes = static_cast<std::int64_t>(to_local(parameter.detach()).storage().nbytes());
      EXPECT_EQ(bytes, 8 * part) << item.key();
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *optimizer.state().at(parameter.unsafeGetTensorImpl()));
      EXPECT_EQ(elements(state.exp_avg()), part) << item.key();
      EXPECT_EQ(elements(state.exp_avg_sq()), part) << item.key();
      if (is_of_expert) {
        EXPECT_EQ(elements(parameter.grad()), part) << item.key();
      }
    }
    EXPECT_EQ(stacked, 4);
  });
}

// Whoever loads only a rank's own rows passes them in as parts.
TEST(ExpertParallel, InputsMayBeTheRowsOfARank) {
  run_ranks(2, [](const comm::Group& group) {
    const Case one;
    auto plain = mixture(one);
    auto cut = mixture(one);
    comm::barrier(group);
    loss_of(plain, one, 0, one.rows).backward();
    const Parallelized parallelized =
        parallelize(*cut, test::plan_of_mixture(cut, {{"expert", 2}}), group);
    const Layout by_rows(parallelized.mesh(), {{"expert", Shard{0}}});
    const std::int64_t first = group.rank() * one.rows / 2;
    const auto part = [&](std::int64_t step) {
      return from_local(tokens_of(first, one.rows / 2, step), by_rows, {one.rows, kTokens});
    };
    loss_of(cut, part(5), part(3), /*flattens=*/false).backward();
    expect_same_gradients(cut, plain, "parts");
  });
}

TEST(ExpertParallel, PlainInputsMustBeTheSameOnAllRanks) {
  const auto thrown = testing::run_ranks_catching(2, [](const comm::Group& group) {
    auto model = mixture({});
    comm::barrier(group);
    const Parallelized parallelized =
        parallelize(*model, test::plan_of_mixture(model, {{"expert", 2}}), group);
    loss_of(model, {}, std::int64_t{4} * group.rank(), 4).backward();
  });
  for (const auto& each : thrown) {
    EXPECT_THAT(testing::message_of<UsageError>(each), HasSubstr("embedding"));
  }
}

TEST(ExpertParallel, RoutingWithoutCapacityIsRefused) {
  const auto thrown = testing::run_ranks_catching(2, [](const comm::Group& group) {
    models::MixtureGPT model(models::MixtureOptions{
        .gpt = {.vocabulary = kVocabulary, .sequence = 16, .hidden = 16, .layers = 2, .heads = 4},
        .experts = 4,
        .is_dropless = true});
    const Parallelized parallelized =
        parallelize(*model, test::plan_of_mixture(model, {{"expert", 2}}), group);
    model->forward(tokens_of(0, 8));
  });
  for (const auto& each : thrown) {
    EXPECT_THAT(testing::message_of<c10::Error>(each),
                HasSubstr("set run_experts to trireme::run_experts for distributed tensors"));
  }
}

// A mixture as in the listings of GShard: masks of tokens, experts and places in place of indices,
// and a capacity over the tokens of all rows.
struct MaskedMixtureImpl : torch::nn::Module {
  static constexpr std::int64_t kExperts = 4;
  static constexpr std::int64_t kHidden = 6;

  MaskedMixtureImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(kVocabulary, kHidden))),
        router(register_module("router", torch::nn::Linear(kHidden, kExperts))),
        up(register_parameter("up", torch::randn({kExperts, kHidden, 9}))),
        down(register_parameter("down", torch::randn({kExperts, 9, kHidden}))) {}

  torch::Tensor forward(const torch::Tensor& rows) {
    const auto tokens = embedding(rows).flatten(0, 1);
    const auto probabilities = router(tokens).softmax(-1);
    const auto [highest, chosen] = probabilities.max(-1);
    const auto is_chosen = torch::one_hot(chosen, kExperts);
    const std::int64_t capacity = tokens.size(0) / kExperts;
    const auto places = is_chosen.cumsum(0).mul(is_chosen).sum(-1) - 1;
    const auto is_place = places.unsqueeze(-1) == torch::arange(capacity);
    const auto mask = (is_chosen.unsqueeze(-1) * is_place.unsqueeze(1)).to(tokens.scalar_type());
    const auto inputs = torch::einsum("tec,th->ech", {mask, tokens});
    const auto results = torch::matmul(torch::relu(torch::matmul(inputs, up)), down);
    return torch::einsum("tec,ech->th", {mask * highest.unsqueeze(-1).unsqueeze(-1), results});
  }

  torch::nn::Embedding embedding;
  torch::nn::Linear router;
  torch::Tensor up, down;
};
TORCH_MODULE(MaskedMixture);

TEST(ExpertParallel, MixturesMayRouteByMasksOverAllRows) {
  for (const std::int64_t rows : {8, 7}) {
    run_ranks(2, [rows](const comm::Group& group) {
      const auto make = [] {
        const std::scoped_lock lock(seeding);
        torch::manual_seed(7);
        MaskedMixture model;
        model->to(torch::kDouble);
        return model;
      };
      auto plain = make();
      auto cut = make();
      comm::barrier(group);
      const auto expected = plain->forward(tokens_of(0, rows)).square().mean();
      expected.backward();
      const Plan plan = {.mesh = {{"expert", 2}}, .layouts = expert_layouts(*cut)};
      const Parallelized parallelized = parallelize(*cut, plan, group);
      const auto loss = cut->forward(tokens_of(0, rows)).square().mean();
      loss.backward();
      expect_close(full(loss.detach()), expected.detach(), kBound, "loss");
      for (const auto& item : plain->named_parameters()) {
        const auto& gradient = cut->named_parameters()[item.key()].grad();
        expect_close(full(gradient), item.value().grad(), kBound, item.key());
      }
      EXPECT_TRUE(layout_of(cut->up.grad())["expert"].is_shard(0));
    });
  }
}

// Returns what a rank sent since the last call, such as `all-to-all of 12 Double`. The number is
// that of elements that the rank ends with.
std::vector<std::string> sent(const comm::Group& group, std::uint64_t& seen) {
  std::vector<std::string> all;
  for (const comm::OperationRecord& record : group.recorder().records()) {
    if (record.number <= seen) continue;
    seen = record.number;
    all.push_back(record.what);
  }
  return all;
}

TEST(ExpertParallel, TokensTravelByAllToAll) {
  testing::engine_of_ranks = "gloo";  // it records what is sent
  run_ranks(2, [](const comm::Group& group) {
    const Case one;
    auto model = mixture(one);
    const DeviceMesh mesh(group, {{"expert", 2}});
    comm::barrier(group);
    distribute_module(*model, mesh, expert_layouts(*model));
    std::uint64_t seen = 0;
    sent(mesh.group(0), seen);
    const auto loss = loss_of(model, one, 0, one.rows);
    // Of each of the 4 rows of a rank, each of 4 experts takes ceil(1.25 * 2 * 11 / 4) = 7 tokens
    // of 16 features.
    const std::string slots = "all-to-all of 1792 Double";
    EXPECT_THAT(sent(mesh.group(0), seen), ElementsAre(slots, slots, "all-reduce of 2 Double"));
    loss.backward();
    // The slot of tokens that no expert takes moves the boundaries of the parts.
    EXPECT_THAT(sent(mesh.group(0), seen),
                ElementsAre(slots, "all-to-all of 256 Double", "all-to-all of 1920 Double"));
  });
  testing::engine_of_ranks = "shm";
}

Explanation explained(std::int64_t rows, std::int64_t experts, int ranks) {
  models::MixtureGPT model(models::MixtureOptions{
      .gpt = {.vocabulary = 512, .sequence = 64, .hidden = 64, .layers = 2, .heads = 4},
      .experts = experts});
  const Plan plan = test::plan_of_mixture(model, {{"expert", ranks}});
  const auto tokens = torch::zeros({rows, 64}, torch::kLong);
  return predict::explain(*model, plan,
                          [&] { return loss_of(model, tokens, tokens, /*flattens=*/false); });
}

// Also where matrices would be less to send than tokens, and ranks do not divide rows or experts.
TEST(ExpertParallel, ExplainShowsThatMatricesStay) {
  for (const auto& [rows, experts, ranks] :
       {std::tuple{8, 4, 2}, {256, 8, 4}, {5, 4, 2}, {8, 6, 4}}) {
    const Explanation explanation = explained(rows, experts, ranks);
    int forward = 0;
    int backward = 0;
    for (const predict::ExplainedOperator& op : explanation.operators) {
      for (const predict::ExplainedCommunication& each : op.communication) {
        if (each.bytes <= 16) continue;  // the sum of the loss
        EXPECT_EQ(each.collective, "all-to-all") << op.call.name;
        EXPECT_THAT(each.tensor, Not(HasSubstr("put_"))) << op.call.name;
        ++(op.is_backward ? backward : forward);
      }
    }
    EXPECT_EQ(forward, 2);
    EXPECT_GE(backward, 2);
    for (const predict::ExplainedCommunication& each : explanation.gradients) {
      EXPECT_EQ(each.collective, "all-reduce") << each.tensor;
      EXPECT_THAT(each.tensor, Not(HasSubstr("put_"))) << "gradients of experts stay";
    }
  }
}

}  // namespace
}  // namespace trireme
