// SPDX-License-Identifier: Apache-2.0
// Unmodified modules whose activations are in host memory for a while: with parts that are computed
// again, within a memory budget, with parameters that are distributed or cut. The bits are those
// without, and the memory is what the record says. The executor does it on the processor too, so
// that it can be compared there; TrainingStep, which would win nothing by it, refuses.
#include <trireme/base/error.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/distribute_module.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/offload/saved_activations.h>
#include <trireme/parallel/pipeline/staged_graph.h>
#include <trireme/parallel/recompute/effects.h>
#include <trireme/parallel/training_step.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/verifier/memory.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/cut_stack.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/tensor/language_model.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace trireme {
namespace {

using pipeline::Executor;
using pipeline::HostCopies;
using pipeline::Program;
using pipeline::SavedActivations;
using pipeline::StagedGraph;
using pipeline::StepReport;
using schedule::ActionKind;
using test::Network;
using ::testing::HasSubstr;
using testing::run_ranks;

constexpr int kRanks = 2;
constexpr std::int64_t kMicroBatches = 6;

struct Case {
  std::string name;
  std::function<Network()> make;
  std::vector<std::vector<std::string>> recompute{{}};  ///< what is computed again, in turn
  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) {
    return out << test_case.name;
  }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"residual",
       test::residual_net,
       {{}, {"blocks.*"}, {"blocks.*.norm", "aten::conv2d"}, {"blocks.*", "blocks.*.norm"}}},
      {"language", [] { return test::language_model(0); }, {{}, {"blocks.*"}, {"aten::gelu"}}},
      {"dropout", [] { return test::language_model(0.2); }, {{}, {"blocks.*"}}},
      {"tied", [] { return test::language_model(0, /*tied=*/true); }},
      {"skipping", test::skipping_net},
      {"recurrent", test::recurrent_net, {{}, {"lower"}}}};
  return all;
}

Plan plan_of(const Network& network, const std::string& kind,
             const std::vector<std::string>& recompute = {}) {
  Plan plan{.mesh = {{kStageAxis, kRanks}}, .schedule = kind, .recompute = recompute};
  plan.micro_batches = kMicroBatches;
  const std::size_t stages = kind == "interleaved" || kind == "zb-v" ? 4 : 2;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    plan.stages.emplace_back(network.modules[stage * network.modules.size() / stages],
                             static_cast<int>(stage));
  }
  return plan;
}

schedule::Schedule offloaded(const schedule::Schedule& plan, int ahead) {
  std::vector<int> stages(static_cast<std::size_t>(plan.num_stages()));
  std::iota(stages.begin(), stages.end(), 0);
  return schedule::with_offloading(plan, stages, ahead);
}

std::int64_t num_offloaded(const schedule::Schedule& plan) {
  std::int64_t number = 0;
  for (const auto& actions : plan.ranks) {
    number += std::ranges::count(actions, ActionKind::kOffload, &schedule::Action::kind);
  }
  return number;
}

struct Trained {
  std::vector<torch::Tensor> losses{};
  std::vector<torch::Tensor> gradients{};  // of this rank's parameters
  std::vector<torch::Tensor> buffers{};
  StepReport report{};
  std::vector<schedule::RankMemory> explained{};  // peaks, by what the last step has measured
  std::vector<schedule::RankMemory> predicted{};  // by the record
};

// Two steps. @param ahead of copies; nothing: what the plan says.
Trained train(const Network& network, const Plan& plan, const comm::Group& group,
              std::optional<int> ahead = {}, std::int64_t rows = 2 * kMicroBatches) {
  auto micro_batches = test::micro_batches_of(network.batch(rows, 0), kMicroBatches);
  for (auto& micro_batch : micro_batches) {
    for (torch::Tensor& tensor : micro_batch) tensor = tensor.contiguous();
  }
  const StagedGraph staged(*network.module, network.forward, micro_batches, plan);
  Program program = staged.program();
  if (ahead) program.schedule = offloaded(program.schedule, *ahead);
  EXPECT_EQ(num_offloaded(program.schedule) > 0, ahead || plan.offload_activations);
  Executor executor(program, staged.code_of(group.rank(), {.seed = 5}), group);
  executor.step(micro_batches, 0);
  const std::int64_t host_bytes = executor.host_bytes();
  pipeline::StepResult result =
      executor.step(micro_batches, 1, {.share_loss = true, .report = true});
  EXPECT_EQ(executor.host_bytes(), host_bytes);
  Trained trained;
  trained.losses = std::move(result.losses);
  trained.losses.push_back(result.loss);
  trained.report = std::move(result.report).value();
  trained.predicted = schedule::peak_memory(executor.schedule(), staged.recomputation().bytes);
  trained.explained = schedule::peak_memory(executor.schedule(), trained.report.stage_bytes);
  for (const auto& [name, parameter] : staged.parameters_of(group.rank())) {
    trained.gradients.push_back(parameter.grad());
  }
  for (const auto& [name, buffer] : staged.buffers_of(group.rank())) {
    trained.buffers.push_back(buffer);
  }
  return trained;
}

void expect_same_bits(const Trained& got, const Trained& expected) {
  test::expect_same_bits(got.losses, expected.losses, "loss");
  test::expect_same_bits(got.gradients, expected.gradients, "gradient");
  test::expect_same_bits(got.buffers, expected.buffers, "buffer");
}

class Offloaded : public ::testing::TestWithParam<Case> {};

TEST_P(Offloaded, HasTheBitsOfWhatStaysOnTheDevice) {
  for (const std::string kind : {"gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
    for (const std::vector<std::string>& recompute : GetParam().recompute) {
      run_ranks(kRanks, [&](const comm::Group& group) {
        SCOPED_TRACE(kind + (recompute.empty() ? "" : ", recompute " + recompute.front()));
        const Network network = GetParam().make();
        const Plan plan = plan_of(network, kind, recompute);
        const Trained expected = train(network, plan, group);
        const Network other = GetParam().make();
        const Trained own = train(other, plan, group, /*ahead=*/0);
        expect_same_bits(own, expected);
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
          EXPECT_EQ(own.report.peak_bytes[rank], own.explained[rank].peak_bytes) << rank;
          EXPECT_LE(own.report.peak_bytes[rank], expected.report.peak_bytes[rank]) << rank;
        }
      });
    }
  }
}

TEST_P(Offloaded, KeepsWhatTheRecordPredicts) {
  for (const std::string kind : {"gpipe", "interleaved"}) {
    run_ranks(kRanks, [&](const comm::Group& group) {
      SCOPED_TRACE(kind);
      const Network network = GetParam().make();
      Plan plan = plan_of(network, kind);
      plan.offload_activations = true;
      const Trained trained = train(network, plan, group);
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(trained.report.peak_bytes[rank], trained.explained[rank].peak_bytes) << rank;
        if (GetParam().name == "dropout") {  // of which the record says a bound
          EXPECT_LE(trained.report.peak_bytes[rank], trained.predicted[rank].peak_bytes) << rank;
        } else {
          EXPECT_EQ(trained.report.peak_bytes[rank], trained.predicted[rank].peak_bytes) << rank;
        }
      }
    });
  }
}

TEST_P(Offloaded, TakesMicroBatchesOfSeveralShapes) {
  constexpr std::int64_t kRows = 2 * kMicroBatches + 2;
  run_ranks(kRanks, [&](const comm::Group& group) {
    const Network network = GetParam().make();
    const Trained expected = train(network, plan_of(network, "zb-h1"), group, {}, kRows);
    const Network other = GetParam().make();
    expect_same_bits(train(other, plan_of(other, "zb-h1"), group, /*ahead=*/0, kRows), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Networks, Offloaded, ::testing::ValuesIn(cases()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(OffloadedByPlan, LeavesLessToComputeAgainWithinABudget) {
  run_ranks(kRanks, [&](const comm::Group& group) {
    const auto with = [&](bool offloads, std::int64_t activation_bytes) {
      const Network network = test::language_model(0);
      Plan plan = plan_of(network, "gpipe");
      plan.offload_activations = offloads;
      plan.activation_bytes = activation_bytes;
      return train(network, plan, group);
    };
    const Trained whole = with(false, 0);
    const std::int64_t budget = whole.report.peak_bytes[0] * 4 / 10;
    const Trained recomputed = with(false, budget);
    expect_same_bits(recomputed, whole);
    const Trained both = with(true, budget);
    expect_same_bits(both, whole);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_LE(recomputed.report.peak_bytes[rank], budget);
      EXPECT_LE(both.report.peak_bytes[rank], budget);
      EXPECT_EQ(both.report.peak_bytes[rank], both.predicted[rank].peak_bytes);
    }
    EXPECT_GT(both.report.stage_bytes[0].activations, recomputed.report.stage_bytes[0].activations);
  });
}

TEST(OffloadedByPlan, IsPrintedWithTheStages) {
  const Network network = test::residual_net();
  Plan plan = plan_of(network, "gpipe");
  const auto micro_batches = test::micro_batches_of(network.batch(12, 0), kMicroBatches);
  const auto text = [&] {
    return StagedGraph(*network.module, network.forward, micro_batches, plan).to_string();
  };
  EXPECT_THAT(text(), ::testing::Not(HasSubstr("host memory")));
  plan.offload_activations = true;
  EXPECT_THAT(text(), HasSubstr("  6 of 6 micro-batches wait for their backward in host memory\n"));
}

TEST(OffloadedByPlan, IsRefusedOnTheProcessor) {
  run_ranks(kRanks, [&](const comm::Group& group) {
    const Network network = test::residual_net();
    Plan plan = plan_of(network, "gpipe");
    plan.offload_activations = true;
    EXPECT_THAT(test::usage_error([&] {
                  const TrainingStep refused(*network.module, network.forward, plan, group);
                }),
                ::testing::AllOf(HasSubstr("cannot have offload_activations for stages "
                                           "on the processor"),
                                 HasSubstr("recompute and activation_bytes")));
    plan = {.offload_activations = true};
    EXPECT_THAT(
        test::usage_error([&] { static_cast<void>(parallelize(*network.module, plan, group)); }),
        HasSubstr("the plan has activations offloaded"));
  });
}

// What `forward` keeps is in host memory until its backward.
void backward_after_offloading(const std::function<torch::Tensor()>& forward,
                               const std::vector<torch::Tensor>& lasting) {
  HostCopies copies(at::kCPU);
  SavedActivations memory(copies, "the test");
  torch::Tensor loss;
  {
    const SavedActivations::Collecting collecting(memory);
    loss = forward();
  }
  SavedActivations::Memories stays;
  for (const torch::Tensor& tensor : lasting) stays.insert(detail::memory_below(tensor));
  memory.sort(stays, {});
  memory.begin();
  EXPECT_FALSE(memory.offload().empty());
  EXPECT_GT(copies.num_bytes(), 0);
  memory.load();
  memory.wait_until_loaded();
  loss.backward();
}

// Its memory is that of this rank's part.
TEST(OffloadedTensors, MayBeDistributed) {
  run_ranks(kRanks, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", kRanks}});
    const torch::Tensor tokens = torch::arange(4 * 6).reshape({4, 6}).remainder(10);
    const auto gradients_of = [&](bool offloads) {
      test::LanguageModel model = test::seeded();
      distribute_module(*model, mesh, test::megatron());
      const auto forward = [&] { return test::loss_of(model, tokens); };
      if (offloads) {
        std::vector<torch::Tensor> lasting = model->parameters();
        lasting.push_back(tokens);
        backward_after_offloading(forward, lasting);
      } else {
        forward().backward();
      }
      std::vector<torch::Tensor> gradients;
      for (const torch::Tensor& parameter : model->parameters()) {
        gradients.push_back(detail::memory_of(parameter.grad()));
      }
      return gradients;
    };
    test::expect_same_bits(gradients_of(true), gradients_of(false), "gradient");
  });
}

// They have no memory but while an operator needs them.
TEST(OffloadedTensors, LeaveParametersThatAreCut) {
  run_ranks(kRanks, [&](const comm::Group& group) {
    const auto train = [&](bool offloads) {
      test::Stack net(6);
      {
        const torch::NoGradGuard no_grad;
        std::int64_t salt = 0;
        for (torch::Tensor& parameter : net->parameters()) {
          parameter.copy_(test::numbers(parameter.sizes(), ++salt) * 0.2);
        }
      }
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Parallelized parallelized = parallelize(*net, test::cut(2), group);
      parallelized.shard(optimizer);
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor input = test::numbers({4, 32}, step + group.rank());
        const auto forward = [&] { return net->forward(input).square().mean(); };
        if (offloads) {
          std::vector<torch::Tensor> lasting = net->parameters();
          lasting.push_back(input);
          backward_after_offloading(forward, lasting);
        } else {
          forward().backward();
        }
        EXPECT_LE(test::num_whole(*net), 2U);
        optimizer.step();
        optimizer.zero_grad();
      }
      parallelized.gather_parameters();
      return test::clones(net->parameters());
    };
    test::expect_same_bits(train(true), train(false), "parameter");
  });
}

}  // namespace
}  // namespace trireme
