// SPDX-License-Identifier: Apache-2.0
// Whole transformers whose plan has an axis `context`, alone and with data and tensor parallelism:
// the loss and every gradient are those of one process, and activations are parts of the sequence.
#include <models/bert.h>
#include <models/gpt.h>
#include <models/llama.h>
#include <models/vit.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/training_step.h>
#include <trireme/predict/explain.h>
#include <trireme/predict/predict.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/close_tensors.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using predict::Explanation;
using ::testing::AllOf;
using testing::expect_close;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_ranks;

constexpr double kBound = 1e-11;
constexpr std::int64_t kRows = 4;
constexpr std::int64_t kTokens = 11;  // not divisible by the ranks
constexpr std::int64_t kVocabulary = 23;

// A model and the loss of some rows of its data.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(std::int64_t first, std::int64_t rows)> loss;
};

std::mutex seeding;  // ranks are threads and share the generator

template <typename Make>
auto seeded(const Make& make) {
  const std::scoped_lock lock(seeding);
  torch::manual_seed(7);
  auto model = make();
  model->to(torch::kDouble);
  return model;
}

torch::Tensor tokens_of(std::int64_t first, std::int64_t rows, std::int64_t step = 5) {
  const auto all = (torch::arange(kRows * kTokens) * step).remainder(kVocabulary);
  return all.reshape({kRows, kTokens}).narrow(0, first, rows);
}

template <typename Model>
Subject of_language(Model model) {
  return {.module = model.ptr(), .loss = [model](std::int64_t first, std::int64_t rows) mutable {
            const auto logits = model->forward(tokens_of(first, rows));
            return torch::cross_entropy_loss(logits.transpose(1, 2), tokens_of(first, rows, 3));
          }};
}

Subject gpt() {
  auto model = seeded([] {
    return models::GPT(models::GPTOptions{.vocabulary = kVocabulary,
                                          .sequence = 16,
                                          .hidden = 16,
                                          .layers = 2,
                                          .heads = 4,
                                          .tied = true});
  });
  return {.module = model.ptr(), .loss = [model](std::int64_t first, std::int64_t rows) mutable {
            const auto logits = model->forward(tokens_of(first, rows));
            return torch::cross_entropy_loss(logits.flatten(0, 1),
                                             tokens_of(first, rows, 3).flatten());
          }};
}

Subject llama() {
  return of_language(seeded([] {
    return models::LLaMA(models::LLaMAOptions{.vocabulary = kVocabulary,
                                              .sequence = 16,
                                              .hidden = 16,
                                              .layers = 2,
                                              .heads = 4,
                                              .key_value_heads = 2,
                                              .feed_forward = 24});
  }));
}

Subject bert() {
  auto model = seeded([] {
    return models::BERT(models::BERTOptions{.vocabulary = kVocabulary,
                                            .sequence = 16,
                                            .hidden = 16,
                                            .layers = 2,
                                            .heads = 4,
                                            .dropout = 0});
  });
  return {.module = model.ptr(), .loss = [model](std::int64_t first, std::int64_t rows) mutable {
            const auto tokens = tokens_of(first, rows);
            const auto is_padding =
                torch::arange(kTokens).unsqueeze(0) > 7 + tokens.slice(1, 0, 1) % 4;
            const auto logits = model->forward(tokens, tokens % 2, is_padding);
            return torch::cross_entropy_loss(logits.transpose(1, 2), tokens_of(first, rows, 3));
          }};
}

Subject vit() {
  auto model = seeded([] {
    return models::ViT(models::ViTOptions{.image_size = 6,
                                          .patch_size = 2,
                                          .hidden = 16,
                                          .layers = 2,
                                          .heads = 4,
                                          .feed_forward = 32,
                                          .classes = 5});
  });
  return {.module = model.ptr(), .loss = [model](std::int64_t first, std::int64_t rows) mutable {
            const auto images = testing::random_tensor({kRows, 3, 6, 6}, torch::kDouble, 3);
            return torch::cross_entropy_loss(model->forward(images.narrow(0, first, rows)),
                                             torch::arange(first, first + rows) % 5);
          }};
}

struct Case {
  std::string name;
  Subject (*make)();
  ParameterLayouts layouts = {};  // along `tensor`
};

std::vector<Case> cases() {
  const auto megatron = [](std::vector<ParameterLayouts> more) {
    more.push_back(row_parallel("*.mlp_output"));
    more.push_back(column_parallel("*.mlp_input"));
    ParameterLayouts all;
    for (auto& each : more) all.insert(all.end(), each.begin(), each.end());
    return all;
  };
  return {{"GPT", gpt, megatron({vocabulary_parallel("token_embedding")})},
          {"LLaMA", llama, megatron({column_parallel("*.mlp_gate")})},
          {"BERT", bert, {{"*", {{"tensor", Replicate{}}}}}},
          {"ViT", vit, megatron({})}};
}

Plan plan_of(const Case& one, std::vector<MeshAxis> mesh) {
  Plan plan;
  plan.mesh = std::move(mesh);
  if (std::ranges::find(plan.mesh, "tensor", &MeshAxis::name) != plan.mesh.end()) {
    plan.layouts = one.layouts;
  }
  return plan;
}

// One backward of the plan equals one of a single process on all rows.
void expect_same(const Case& one, const Plan& plan, const comm::Group& group) {
  Subject plain = one.make();
  Subject cut = one.make();
  comm::barrier(group);  // parallelize sets the generator of all threads
  const torch::Tensor expected = plain.loss(0, kRows);
  expected.backward();
  Parallelized parallelized = parallelize(*cut.module, plan, group);
  const std::int64_t rows = kRows / parallelized.data_group().size();
  const torch::Tensor loss = cut.loss(parallelized.data_group().rank() * rows, rows);
  loss.backward();
  if (rows == kRows) expect_close(full(loss.detach()), expected.detach(), kBound, one.name);
  const auto parameters = cut.module->named_parameters();
  for (const auto& item : plain.module->named_parameters()) {
    // Gradients of the biases of keys are zero, but for rounding.
    EXPECT_TRUE(
        torch::allclose(full(parameters[item.key()].grad()), item.value().grad(), kBound, 1e-15))
        << one.name << " on " << group.size() << ": " << item.key();
  }
}

TEST(ContextParallel, TransformersTrainLikeOneProcess) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [ranks](const comm::Group& group) {
      for (const Case& one : cases()) {
        expect_same(one, plan_of(one, {{"context", ranks}}), group);
      }
    });
  }
}

TEST(ContextParallel, WithEveryKindOfAttention) {
  run_ranks(3, [](const comm::Group& group) {
    for (const auto attention :
         {SequenceAttention::kRing, SequenceAttention::kHeads, SequenceAttention::kGather}) {
      for (const Case& one : cases()) {
        Plan plan = plan_of(one, {{"context", 3}});
        plan.sequence_attention = attention;
        expect_same(one, plan, group);
      }
    }
  });
}

TEST(ContextParallel, WithDataAndTensorParallelism) {
  const std::vector<std::vector<MeshAxis>> meshes = {{{"data", 2}, {"context", 2}},
                                                     {{"context", 2}, {"tensor", 2}},
                                                     {{"tensor", 2}, {"context", 2}}};
  for (const auto& mesh : meshes) {
    run_ranks(4, [&](const comm::Group& group) {
      for (const Case& one : cases()) expect_same(one, plan_of(one, mesh), group);
    });
  }
  run_ranks(8, [](const comm::Group& group) {
    const Case one = cases().front();
    expect_same(one, plan_of(one, {{"data", 2}, {"context", 2}, {"tensor", 2}}), group);
  });
}

TEST(ContextParallel, ZeroShardsParametersOverDataRanks) {
  run_ranks(4, [](const comm::Group& group) {
    for (const int level : {1, 3}) {
      const auto train = [&](Plan plan, const comm::Group& ranks) {
        Subject subject = gpt();
        comm::barrier(group);
        plan.zero_level = ranks.size() > 1 ? level : 0;
        Parallelized parallelized = parallelize(*subject.module, plan, ranks);
        torch::optim::AdamW optimizer(subject.module->parameters());
        parallelized.shard(optimizer);
        const std::int64_t rows = kRows / parallelized.data_group().size();
        for (int step = 0; step < 2; ++step) {
          optimizer.zero_grad();
          subject.loss(parallelized.data_group().rank() * rows, rows).backward();
          optimizer.step();
        }
        parallelized.gather_parameters();
        return full(subject.module->named_parameters()["token_embedding.weight"].detach()).clone();
      };
      expect_close(train({.mesh = {{"data", 2}, {"context", 2}}}, group),
                   train({}, comm::Group::self()), 1e-9, join_message("ZeRO ", level));
    }
  });
}

TEST(ContextParallel, TrainingStepRunsItWithAndWithoutStages) {
  for (const bool has_stages : {false, true}) {
    run_ranks(has_stages ? 4 : 2, [&](const comm::Group& group) {
      auto plain = seeded([] {
        return models::GPT(models::GPTOptions{
            .vocabulary = kVocabulary, .sequence = 16, .hidden = 16, .layers = 2, .heads = 4});
      });
      auto model = seeded([] {
        return models::GPT(models::GPTOptions{
            .vocabulary = kVocabulary, .sequence = 16, .hidden = 16, .layers = 2, .heads = 4});
      });
      Plan plan = {.mesh = {{"context", 2}}, .micro_batches = 2};
      if (has_stages) plan.mesh = {{"pipe", 2}, {"context", 2}};
      const auto loss_of = [](models::GPT& net, const std::vector<at::Tensor>& in) {
        return torch::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), in[1].flatten());
      };
      comm::barrier(group);  // a TrainingStep draws from the generator of all threads
      const std::vector<at::Tensor> batch = {tokens_of(0, kRows), tokens_of(0, kRows, 3)};
      const auto expected = loss_of(plain, batch);
      expected.backward();
      TrainingStep training(
          *model,
          [&](const std::vector<at::Tensor>& in) {
            return std::vector<at::Tensor>{loss_of(model, in)};
          },
          plan, group);
      expect_close(training.step(batch).loss, expected.detach(), kBound, "loss");
      for (const auto& item : model->named_parameters()) {
        if (!item.value().grad().defined()) continue;  // of another stage
        EXPECT_TRUE(torch::allclose(full(item.value().grad()),
                                    plain->named_parameters()[item.key()].grad(), kBound, 1e-15))
            << item.key();
      }
    });
  }
}

Explanation explained(const Case& one, const Plan& plan, std::int64_t rows = kRows) {
  Subject subject = one.make();
  return predict::explain(*subject.module, plan, [&] { return subject.loss(0, rows); });
}

// From the embedding to the loss of a row, every operator on features has a part of the sequence,
// and only attention communicates.
TEST(ContextParallel, ActivationsAreParts) {
  for (const Case& one : {cases()[0], cases()[1], cases()[2]}) {
    Plan plan = plan_of(one, {{"context", 2}});
    plan.sequence_attention = SequenceAttention::kRing;
    const Explanation explanation = explained(one, plan, 1);
    int rings = 0;
    for (const predict::ExplainedOperator& op : explanation.operators) {
      for (const predict::ExplainedCommunication& sent : op.communication) {
        if (sent.collective == "ring") {
          EXPECT_THAT(op.call.name, HasSubstr("flash_attention"));
          ++rings;
        } else {
          EXPECT_LE(sent.bytes, 16) << one.name << ": " << op.call.name;  // the sum of the loss
        }
      }
      for (const tensor::DryRunTensor& result : op.call.outputs) {
        const bool has_sequence =
            std::ranges::find(result.sizes, kTokens) != result.sizes.end() && !op.is_backward;
        if (!has_sequence || op.call.name.starts_with("aten::embedding")) continue;
        EXPECT_TRUE(result.layout["context"].is_shard()) << one.name << ": " << op.call.name;
      }
    }
    EXPECT_EQ(rings, 6) << one.name;  // of two blocks: one forward, two backward
  }
}

TEST(ContextParallel, ExplainSaysHowAttentionRuns) {
  const Case one = cases().front();
  const auto text_of = [&](SequenceAttention attention) {
    Plan plan = plan_of(one, {{"context", 2}});
    plan.sequence_attention = attention;
    return to_string(explained(one, plan));
  };
  EXPECT_THAT(text_of(SequenceAttention::kRing),
              AllOf(HasSubstr("keys and values travel while blocks are computed"),
                    HasSubstr("context ring           forward        2 times"),
                    HasSubstr("context ring           backward       4 times")));
  EXPECT_THAT(text_of(SequenceAttention::kHeads),
              HasSubstr("heads in place of the sequence while attention is computed"));
  EXPECT_THAT(text_of(SequenceAttention::kGather), Not(HasSubstr("ring  ")));
}

// The last rank sees all keys, the first one a part of them.
TEST(ContextParallel, ExplainCountsTheBusiestRank) {
  const Case one = cases().front();
  const auto flops_of = [&](SequenceAttention attention) {
    Plan plan = plan_of(one, {{"context", 2}});
    plan.sequence_attention = attention;
    for (const predict::ExplainedOperator& op : explained(one, plan).operators) {
      if (op.call.name.find("flash_attention") != std::string::npos) return op.flops();
    }
    return 0.0;
  };
  // Of 66 scores under the mask of 11 tokens, the ranks compute 21 and 45.
  EXPECT_NEAR(flops_of(SequenceAttention::kRing) / flops_of(SequenceAttention::kHeads), 90.0 / 66,
              1e-12);
}

// On the ring they travel while blocks are computed; gathered keys are waited for.
TEST(ContextParallel, PredictionsHideTheMessagesOfTheRing) {
  constexpr std::int64_t kLong = 4096;
  auto model = models::GPT(models::GPTOptions{
      .vocabulary = 8, .sequence = kLong, .hidden = 256, .layers = 1, .heads = 4});
  const auto tokens = torch::zeros({1, kLong}, torch::kLong);
  const auto predicted = [&](SequenceAttention attention) {
    const Plan plan = {.mesh = {{"context", 2}}, .sequence_attention = attention};
    return predict::predict(*model, plan, cluster::read_cluster("a100-80"), [&] {
      return torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), tokens.flatten());
    });
  };
  const auto ring = predicted(SequenceAttention::kRing);
  const auto gather = predicted(SequenceAttention::kGather);
  EXPECT_NEAR(ring.parts.compute, gather.parts.compute, 1e-2 * gather.parts.compute);
  EXPECT_LT(ring.parts.layouts, 0.9 * gather.parts.layouts);
  EXPECT_LT(ring.step_seconds, gather.step_seconds);
}

}  // namespace
}  // namespace trireme
