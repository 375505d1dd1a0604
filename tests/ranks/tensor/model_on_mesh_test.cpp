// SPDX-License-Identifier: Apache-2.0
// Model with a plan whose mesh has other axes than data: the same training as with data alone.
#include <trireme/base/error.h>
#include <trireme/data/data_loader.h>
#include <trireme/optim/fused_adam.h>
#include <trireme/optim/lamb.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/losses.h>
#include <trireme/train/model.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/tensor/language_model.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::megatron;
using test::seeded;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_catching;

Plan on_mesh(std::vector<MeshAxis> mesh) {
  Plan plan;
  plan.mesh = std::move(mesh);
  if (shares_work(plan)) plan.layouts = megatron();
  return plan;
}

data::DataLoader pipeline_for(const DataPart& part) {
  const auto tokens = (torch::arange(16 * 6).reshape({16, 6}) * 7).remainder(10);
  data::DataLoader pipeline(data::tensors({{"input", tokens.narrow(1, 0, 5).contiguous()},
                                           {"target", tokens.narrow(1, 1, 5).contiguous()}}));
  pipeline.shard({.index = part.index, .count = part.count}).batch(4);
  return pipeline;
}

struct Outcome {
  History history;
  Evaluation evaluation;
  torch::Tensor predicted;
  std::vector<torch::Tensor> parameters;
};

enum class Kind { kAdamW, kFusedAdamW, kLamb };

std::unique_ptr<torch::optim::Optimizer> optimizer_of(Kind kind,
                                                      std::vector<torch::Tensor> parameters) {
  if (kind == Kind::kLamb) return lamb(std::move(parameters), {.learning_rate = 1e-2});
  if (kind == Kind::kFusedAdamW) return fused_adamw(std::move(parameters), 1e-2);
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), 1e-2);
}

Outcome train(const Plan& plan, const comm::Group& group, const Callbacks& callbacks = {},
              Kind kind = Kind::kAdamW) {
  auto network = seeded();
  const auto optimizer = optimizer_of(kind, network->parameters());
  const auto data = pipeline_for(data_part(plan, group));
  const auto loss = [](const torch::Tensor& logits, const torch::Tensor& target) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
  };
  Model model(network, loss, *optimizer, {.group = group, .plan = plan, .clip_norm = 1.0});
  Outcome outcome;
  outcome.history = model.train(3, data, callbacks);
  outcome.evaluation = model.evaluate(data);
  outcome.predicted = model.predict(torch::arange(5).unsqueeze(0)).detach();
  for (const auto& parameter : network->parameters()) {
    outcome.parameters.push_back(full(parameter.detach()).clone());
  }
  return outcome;
}

TEST(ModelOnMesh, TrainsEvaluatesAndPredictsAsWithDataAlone) {
  for (const int along_data : {1, 2}) {
    Outcome expected;
    run_ranks(along_data, [&](const comm::Group& group) {
      const Outcome outcome = train({}, group);
      if (group.rank() == 0) expected = outcome;
    });
    for (const int zero_level : {0, 2}) {
      run_ranks(2 * along_data, [&](const comm::Group& group) {
        Plan plan = on_mesh({{"data", along_data}, {"tensor", 2}});
        plan.zero_level = zero_level;
        const Outcome outcome = train(plan, group);
        ASSERT_EQ(outcome.history.epochs.size(), 3);
        for (std::size_t epoch = 0; epoch < 3; ++epoch) {
          EXPECT_NEAR(outcome.history.epochs[epoch].loss, expected.history.epochs[epoch].loss,
                      1e-6);
          EXPECT_EQ(outcome.history.epochs[epoch].samples, expected.history.epochs[epoch].samples);
        }
        EXPECT_NEAR(outcome.evaluation.loss, expected.evaluation.loss, 1e-9);
        EXPECT_EQ(outcome.evaluation.samples, expected.evaluation.samples);
        EXPECT_EQ(outcome.evaluation.accuracy, expected.evaluation.accuracy);
        EXPECT_TRUE(torch::allclose(outcome.predicted, expected.predicted, 1e-9, 1e-9));
        for (std::size_t i = 0; i < outcome.parameters.size(); ++i) {
          EXPECT_TRUE(torch::allclose(outcome.parameters[i], expected.parameters[i], 1e-9, 1e-9));
        }
      });
    }
  }
}

// The norms of LAMB are those of whole parameters, whether layouts cut them, ZeRO, or both.
TEST(ModelOnMesh, TrainsByLambAsOnOneRank) {
  for (const int along_data : {1, 2}) {
    Outcome expected;
    run_ranks(along_data, [&](const comm::Group& group) {
      const Outcome outcome = train({}, group, {}, Kind::kLamb);
      if (group.rank() == 0) expected = outcome;
    });
    for (const int zero_level : {0, 1, 2, 3}) {
      run_ranks(2 * along_data, [&](const comm::Group& group) {
        Plan plan = on_mesh({{"data", along_data}, {"tensor", 2}});
        plan.zero_level = zero_level;
        const Outcome outcome = train(plan, group, {}, Kind::kLamb);
        for (std::size_t i = 0; i < outcome.parameters.size(); ++i) {
          EXPECT_TRUE(torch::allclose(outcome.parameters[i], expected.parameters[i], 1e-9, 1e-9))
              << "parameter " << i << ", ZeRO " << zero_level << ", data " << along_data;
        }
      });
    }
  }
}

TEST(ModelOnMesh, TrainsByFusedAdamWAsWithDataAlone) {
  Outcome expected;
  run_ranks(2, [&](const comm::Group& group) {
    const Outcome outcome = train({}, group, {}, Kind::kFusedAdamW);
    if (group.rank() == 0) expected = outcome;
  });
  for (const int zero_level : {0, 2}) {
    run_ranks(4, [&](const comm::Group& group) {
      Plan plan = on_mesh({{"data", 2}, {"tensor", 2}});
      plan.zero_level = zero_level;
      const Outcome outcome = train(plan, group, {}, Kind::kFusedAdamW);
      for (std::size_t i = 0; i < outcome.parameters.size(); ++i) {
        EXPECT_TRUE(torch::allclose(outcome.parameters[i], expected.parameters[i], 1e-9, 1e-9));
      }
    });
  }
}

// Its step would write to a copy of such state, which nobody reads.
TEST(ModelOnMesh, RefusesStateOfAFusedOptimizerFromBeforeTheDivision) {
  run_ranks(2, [](const comm::Group& group) {
    auto network = seeded();
    const auto optimizer = fused_adamw(network->parameters(), 1e-2);
    const auto set_gradients = [&] {
      const torch::NoGradGuard no_gradients;
      for (torch::Tensor& parameter : network->parameters()) {
        parameter.mutable_grad() = torch::ones_like(parameter);
      }
    };
    set_gradients();
    optimizer->step();
    optimizer->zero_grad();
    const Parallelized parallelized = parallelize(*network, on_mesh({{"tensor", 2}}), group);
    set_gradients();
    EXPECT_THAT(test::message_of<UsageError>([&] { optimizer->step(); }),
                AllOf(HasSubstr("the state that fused_adamw() has is of a plain tensor, and its "
                                "parameter is now Double ["),
                      HasSubstr("make the optimizer after parallelize()")));
  });
}

TEST(ModelOnMesh, TrainsOnPartsOfSequences) {
  Outcome expected;
  run_ranks(1, [&](const comm::Group& group) { expected = train({}, group); });
  run_ranks(2, [&](const comm::Group& group) {
    const Outcome outcome = train({.mesh = {{"context", 2}}}, group);
    EXPECT_NEAR(outcome.history.epochs.back().loss, expected.history.epochs.back().loss, 1e-9);
    EXPECT_NEAR(outcome.evaluation.loss, expected.evaluation.loss, 1e-9);
    EXPECT_TRUE(torch::allclose(outcome.predicted, expected.predicted, 1e-9, 1e-9));
    for (std::size_t i = 0; i < outcome.parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(outcome.parameters[i], expected.parameters[i], 1e-9, 1e-9));
    }
  });
}

TEST(ModelOnMesh, StopsOnAllRanksWhereOneWishes) {
  run_ranks(4, [](const comm::Group& group) {
    LambdaCallback stopping({.step_end = [&](const StepEndContext& step) {
      if (group.rank() == 3 && step.global_step == 2) step.run.model.request_stop();
    }});
    const Outcome outcome = train(on_mesh({{"data", 2}, {"tensor", 2}}), group, {stopping});
    EXPECT_TRUE(outcome.history.is_stopped);
    EXPECT_TRUE(outcome.history.epochs.size() < 3);
  });
}

// The ranks that wait inside forward are told by the end of their group.
TEST(ModelOnMesh, EndsOnAllRanksWhereForwardFailsOnOne) {
  const auto thrown = run_ranks_catching(4, [](const comm::Group& group) {
    auto network = seeded();
    torch::optim::SGD optimizer(network->parameters(), 0.1);
    const Plan plan = on_mesh({{"data", 2}, {"tensor", 2}});
    const auto data = pipeline_for(data_part(plan, group));
    const auto loss = [&](const torch::Tensor& logits, const torch::Tensor& target) {
      if (group.rank() == 1) throw std::runtime_error("no loss today");
      return torch::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
    };
    Model model(network, loss, optimizer, {.group = group, .plan = plan});
    model.train(1, data);
  });
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    ASSERT_TRUE(thrown[rank]) << "rank " << rank;
    try {
      std::rethrow_exception(thrown[rank]);
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("no loss today")) << "rank " << rank;
    }
  }
}

TEST(ModelOnMesh, NoticesRanksThatReadDifferentData) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    auto network = seeded();
    torch::optim::SGD optimizer(network->parameters(), 0.1);
    const auto loss = [](const torch::Tensor& logits, const torch::Tensor& target) {
      return torch::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
    };
    Model model(network, loss, optimizer, {.group = group, .plan = on_mesh({{"tensor", 2}})});
    model.train(1, pipeline_for({.index = group.rank(), .count = 2}));
  });
  for (const std::exception_ptr& error : thrown) {
    EXPECT_THAT(testing::message_of<UsageError>(error),
                AllOf(HasSubstr("have read different batches"), HasSubstr("data_part")));
  }
}

}  // namespace
}  // namespace trireme
