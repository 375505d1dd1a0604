// SPDX-License-Identifier: Apache-2.0
// That ranks choose layouts by the description that TRIREME_CLUSTER names, as explain does.
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/training_step.h>
#include <trireme/predict/explain.h>
#include <trireme/tensor/axis_links.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/one_host.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/tensor/sent_collectives.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::ClusterInEnvironment;
using test::one_host;
using test::TemporaryFolder;
using test::usage_error;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_ranks;
using torch::nn::Linear;
using torch::nn::LinearOptions;
using torch::nn::Sequential;

// Two layers whose outputs are sharded: see tests/unit/parallel/record/module_record_test.cpp.
Sequential two_layers() {
  torch::manual_seed(5);
  return Sequential(Linear(LinearOptions(256, 256).bias(false)), torch::nn::ReLU(),
                    Linear(LinearOptions(256, 256).bias(false)));
}

at::Tensor loss_of_layers(Sequential& model) {
  return model->forward(torch::ones({80, 256})).square().mean();
}

Plan sharded_plan(std::vector<MeshAxis> mesh) {
  Plan plan = {.mesh = std::move(mesh)};
  plan.layouts = {{"*.weight", {{"tensor", Shard{0}}}}};
  return plan;
}

std::string write_host(const TemporaryFolder& folder, double gb_per_s) {
  const auto file = folder.path() / "host.toml";
  cluster::write_cluster(one_host(gb_per_s), file);
  return file.string();
}

// What forward sends, such as `all-gather on tensor, 61440 bytes`.
std::vector<std::string> explained(const Plan& plan) {
  Sequential model = two_layers();
  std::vector<std::string> lines;
  for (const predict::ExplainedOperator& op :
       predict::explain(*model, plan, [&] { return loss_of_layers(model); }).operators) {
    if (op.is_backward) continue;
    for (const predict::ExplainedCommunication& line : op.communication) {
      lines.push_back(join_message(line.collective, " on ", line.axis, ", ",
                                   std::llround(line.bytes), " bytes"));
    }
  }
  return lines;
}

TEST(ClusterLinks, DecideWhatRanksSend) {
  testing::engine_of_ranks = "gloo";  // records every collective
  const Plan plan = sharded_plan({{"tensor", 4}});
  for (const bool is_slow : {false, true}) {
    const TemporaryFolder folder;
    const ClusterInEnvironment variable(write_host(folder, is_slow ? 0.05 : 50));
    const std::vector<std::string> expected = explained(plan);
    const auto has_exchange = Contains(HasSubstr("all-to-all"));
    if (is_slow) {
      EXPECT_THAT(expected, has_exchange);
    } else {
      EXPECT_THAT(expected, Not(has_exchange));
    }
    run_ranks(4, [&](const comm::Group& group) {
      Sequential model = two_layers();
      const Parallelized parallel = parallelize(*model, plan, group);
      test::SentCollectives sent(parallel.mesh());
      loss_of_layers(model);
      EXPECT_EQ(sent.take(), expected);
    });
  }
  testing::engine_of_ranks = "shm";
}

TEST(ClusterLinks, AreThoseOfTheMeshOfParallelize) {
  const TemporaryFolder folder;
  const auto check = [](double bytes_per_second) {
    run_ranks(4, [bytes_per_second](const comm::Group& group) {
      Sequential model = two_layers();
      const auto parallel = parallelize(*model, sharded_plan({{"data", 2}, {"tensor", 2}}), group);
      const DeviceMesh& mesh = parallel.mesh();
      EXPECT_EQ(tensor::has_axis_links(mesh), bytes_per_second != Link().bytes_per_second);
      EXPECT_NEAR(tensor::link_along(*mesh.state(), 0, Collective::kAllReduce).bytes_per_second,
                  bytes_per_second, 1e3);
    });
  };
  check(Link().bytes_per_second);
  const ClusterInEnvironment variable(write_host(folder, 20));
  check(20e9);
}

TEST(ClusterLinks, OfAMeshThatTheProgramMadeAreSetByParallelize) {
  const TemporaryFolder folder;
  const ClusterInEnvironment variable(write_host(folder, 20));
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    Sequential first = two_layers();
    Sequential second = two_layers();
    const Plan plan = sharded_plan({});
    const Parallelized parallel = parallelize(*first, plan, mesh);
    EXPECT_TRUE(tensor::has_axis_links(mesh));
    const Parallelized again = parallelize(*second, plan, mesh);
    loss_of_layers(first);
    loss_of_layers(second);
  });
}

TEST(ClusterLinks, AreSetByATrainingStepToo) {
  const TemporaryFolder folder;
  const ClusterInEnvironment variable(write_host(folder, 20));
  run_ranks(2, [](const comm::Group& group) {
    Sequential model = two_layers();
    TrainingStep step(
        *model,
        [&](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
          return {model->forward(inputs[0]).square().mean()};
        },
        sharded_plan({{"tensor", 2}}), group);
    step.step({torch::ones({8, 256})});
    EXPECT_TRUE(tensor::has_axis_links(step.parallelized().mesh()));
  });
}

TEST(ClusterLinks, OfAnotherDescriptionAreRefusedWhileTheMeshIsInUse) {
  const TemporaryFolder folder;
  const ClusterInEnvironment variable(write_host(folder, 20));
  run_ranks(2, [&](const comm::Group& group) {
    const Plan plan = sharded_plan({{"tensor", 2}});
    Sequential first = two_layers();
    Sequential second = two_layers();
    const Parallelized parallel = parallelize(*first, plan, group);
    if (group.rank() == 0) write_host(folder, 30);
    comm::barrier(group);
    EXPECT_THAT(usage_error([&] { const auto more = parallelize(*second, plan, group); }),
                HasSubstr("mesh tensor=2 has links already, and was given others"));
  });
}

TEST(ClusterLinks, ThatAreMissingAreAnErrorOnAllRanks) {
  const TemporaryFolder folder;
  const ClusterInEnvironment variable(write_host(folder, 20));  // has four devices
  for (const std::exception_ptr& thrown :
       testing::run_ranks_catching(5, [](const comm::Group& group) {
         Sequential model = two_layers();
         const Parallelized parallel = parallelize(*model, sharded_plan({{"tensor", 5}}), group);
       })) {
    EXPECT_THAT(testing::message_of<UsageError>(thrown),
                HasSubstr("cluster test has 4 devices, and 5 ranks need one each"));
  }
}

}  // namespace
}  // namespace trireme
