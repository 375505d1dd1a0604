// SPDX-License-Identifier: Apache-2.0
// Data parallelism and ZeRO on accelerators against one process on the same accelerator, and what
// goes with them against the same on the CPU.
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/collectives.h>
#include <trireme/optim/gradients.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/parallel/horovod.h>
#include <trireme/parallel/recompute.h>
#include <trireme/parallel/sharded_state.h>

#include <tests/ranks/devices/test_device.h>
#include <tests/ranks/parity.h>
#include <tests/temporary_folder.h>

#include <cstdint>
#include <filesystem>
#include <tuple>

namespace trireme {
namespace {

using comm::Group;
using test::Case;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::Net;
using testing::expect_same;
using testing::name_of_way;
using testing::OnDevices;
using testing::run_device_ranks;
using testing::test_device;

std::vector<torch::Tensor> parameters_of(const Net& net) {
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& parameter : net->parameters()) values.push_back(parameter.clone());
  return values;
}

// The same as loss_of(), with the linear layers in two recomputed parts.
torch::Tensor loss_with_recomputation(Net& net, const torch::Tensor& batch) {
  const torch::Tensor images = torch::relu(net->norm(net->conv(batch))).flatten(1);
  const torch::Tensor hidden =
      recompute([&](const torch::Tensor& x) { return torch::relu(net->first(x)); }, images);
  const torch::Tensor output = recompute(
      [&](const torch::Tensor& x) { return net->third(net->second(x).tanh()).tanh(); }, hidden);
  return (output * net->scale.sum().to(torch::kFloat)).square().mean();
}

class DataParallelOnDevices : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(, DataParallelOnDevices, ::testing::Bool(), name_of_way);

TEST_P(DataParallelOnDevices, GivesWhatOneProcessGives) {
  std::vector<Case> cases;
  for (const int zero_level : {0, 1, 2, 3}) {
    cases.push_back({.ranks = 2, .zero_level = zero_level});
    cases.push_back({.ranks = 3, .bucket_bytes = 1, .zero_level = zero_level, .optimizer = "adam"});
    cases.push_back({.ranks = 2, .micro_batches = 2, .zero_level = zero_level, .is_delayed = true});
  }
  for (const int zero_level : {1, 2, 3}) {
    cases.push_back(
        {.ranks = 3, .zero_level = zero_level, .optimizer = "adam", .offload_optimizer = true});
    cases.push_back({.ranks = 4, .zero_level = zero_level, .shard_ranks = 2});
  }
  // One rank has nothing to share, but the optimizer's state leaves the device.
  for (const int zero_level : {1, 2, 3}) {
    cases.push_back(
        {.ranks = 1, .zero_level = zero_level, .optimizer = "adam", .offload_optimizer = true});
  }
  cases.push_back({.ranks = 3, .bucket_bytes = 1, .zero_level = 3, .gathered_buckets = 0});
  cases.push_back({.ranks = 3, .bucket_bytes = 1, .streams = 3});
  for (const Case& c : cases) {
    constexpr int kSteps = 3;
    const auto expected = test::train_alone(c, kSteps, test_device(0));
    run_device_ranks(c.ranks, [&](const Group& group, at::Device device) {
      const auto got = test::train_parallel(c, kSteps, group, device);
      for (std::size_t p = 0; p < got.size(); ++p) {
        EXPECT_EQ(got[p].device(), device);
        expect_same(got[p], expected[p],
                    ::testing::PrintToString(c) + ": parameter " + std::to_string(p));
      }
    });
  }
}

// Norms are sums in fp64 of what each rank has, and on the host exact ones. One process takes them
// in fp32.
TEST_P(DataParallelOnDevices, StepsByLambAsOneProcessWithinTheRoundingOfNorms) {
  constexpr int kSteps = 3;
  for (const int zero_level : {1, 2, 3}) {
    for (const bool offloads : {false, true}) {
      const Case c = {.ranks = 3,
                      .bucket_bytes = 1,
                      .zero_level = zero_level,
                      .optimizer = "lamb",
                      .offload_optimizer = offloads};
      const auto expected = test::train_alone(c, kSteps, test_device(0));
      run_device_ranks(c.ranks, [&](const Group& group, at::Device device) {
        const auto got = test::train_parallel(c, kSteps, group, device);
        for (std::size_t p = 0; p < got.size(); ++p) {
          const torch::Tensor difference = got[p].cpu() - expected[p].cpu();
          EXPECT_LE(difference.abs().max().item<double>(),
                    1e-6 * expected[p].abs().max().item<double>())
              << ::testing::PrintToString(c) << ": parameter " << p;
        }
      });
    }
  }
}

TEST_P(DataParallelOnDevices, KeepsTheStateOfAnOffloadedOptimizerOnTheHost) {
  for (const int ranks : {1, 2}) {
    run_device_ranks(ranks, [](const Group& group, at::Device device) {
      Net net = make_net(1);
      net->to(device);
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
      auto parallel = parallelize(*net, {.zero_level = 1, .offload_optimizer = true}, group);
      parallel.shard(optimizer);
      loss_of(net, make_batch(0, group.rank()).to(device)).backward();
      optimizer.step();
      EXPECT_FALSE(optimizer.state().empty());
      for (const auto& [key, state] : optimizer.state()) {
        EXPECT_TRUE(dynamic_cast<torch::optim::AdamParamState&>(*state).exp_avg().is_cpu());
      }
    });
  }
}

TEST_P(DataParallelOnDevices, SendsGradientsInHalfPrecision) {
  for (const int zero_level : {0, 1, 2, 3}) {
    compare_with_cpu(2, [&](const Group& group, at::Device device) {
      Net net = make_net(1);
      net->to(device);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      auto parallel = parallelize(
          *net,
          {.zero_level = zero_level, .gradient_predivide = 2.0, .wire = GradientCompression::kBf16},
          group);
      parallel.shard(optimizer);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        loss_of(net, make_batch(step, group.rank()).to(device)).backward();
        optimizer.step();
      }
      return parameters_of(net);
    });
  }
}

TEST_P(DataParallelOnDevices, RecomputesInBackward) {
  for (const int zero_level : {0, 1, 2, 3}) {
    compare_with_cpu(3, [&](const Group& group, at::Device device) {
      Net net = make_net(1);
      net->to(device);
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
      auto parallel = parallelize(*net, {.bucket_bytes = 1000, .zero_level = zero_level}, group);
      parallel.shard(optimizer);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        loss_with_recomputation(net, make_batch(step, group.rank()).to(device)).backward();
        optimizer.step();
      }
      parallel.unshard(optimizer);
      return parameters_of(net);
    });
  }
}

#ifdef TRIREME_FAKE_DEVICE
// Only the fake accelerator counts how often the host waits for it.
TEST_P(DataParallelOnDevices, LetsTheHostNeverWaitInTheSteadyState) {
  if (!GetParam()) return;  // tensors that travel through the host make it wait
  for (const int zero_level : {0, 1, 2, 3}) {
    run_device_ranks(3, [&](const Group& group, at::Device device) {
      Net net = make_net(1);
      net->to(device);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      auto parallel = parallelize(*net, {.bucket_bytes = 1000, .zero_level = zero_level}, group);
      parallel.shard(optimizer);
      std::vector<torch::Tensor> batches;
      for (int step = 0; step < 6; ++step) {
        batches.push_back(make_batch(step, group.rank()).to(device));
      }
      std::uint64_t before = 0;
      for (std::size_t step = 0; step < batches.size(); ++step) {
        if (step == 3) {
          comm::barrier(group);
          before = testing::fake::host_waits();
          comm::barrier(group);
        }
        optimizer.zero_grad();
        loss_of(net, batches[step]).backward();
        clip_by_global_norm(optimizer, 0.5, parallel.sharing());
        optimizer.step();
      }
      comm::barrier(group);
      EXPECT_EQ(testing::fake::host_waits() - before, 0U) << "ZeRO level " << zero_level;
      comm::barrier(group);
    });
  }
}
#endif

TEST_P(DataParallelOnDevices, NormalisesOverTheBatchesOfAllRanks) {
  compare_with_cpu(3, [](const Group& group, at::Device device) {
    Net net = make_net(1);
    net->to(device);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    const auto parallel = parallelize(*net, {.sync_batch_norm = true}, group);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      loss_of(net, make_batch(step, group.rank()).to(device)).backward();
      optimizer.step();
    }
    auto values = parameters_of(net);
    for (const torch::Tensor& buffer : net->buffers()) values.push_back(buffer.clone());
    return values;
  });
}

TEST_P(DataParallelOnDevices, ScalesLossesAndClipsGradients) {
  for (const int zero_level : {0, 1, 2, 3}) {
    compare_with_cpu(
        2,
        [&](const Group& group, at::Device device) {
          Net net = make_net(1);
          net->to(device);
          torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
          auto parallel = parallelize(*net, {.zero_level = zero_level}, group);
          parallel.shard(optimizer);
          LossScale scale({.initial = 8});
          std::vector<torch::Tensor> values;
          for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad();
            scale.scale(loss_of(net, make_batch(step, group.rank()).to(device))).backward();
            EXPECT_TRUE(scale.unscale(optimizer, parallel.sharing()));
            values.push_back(clip_by_global_norm(optimizer, 0.1, parallel.sharing()));
            optimizer.step();
          }
          for (torch::Tensor& value : parameters_of(net)) values.push_back(value);
          return values;
        },
        1e-6);  // the CPU adds squares exactly
  }
}

TEST_P(DataParallelOnDevices, HorovodsOptimizerAndCollectivesGiveTheSameAsOnTheCpu) {
  compare_with_cpu(2, [](const Group& group, at::Device device) {
    Net net = make_net(1 + static_cast<std::uint64_t>(group.rank()));
    net->to(device);
    hvd::broadcast_parameters(*net, 0, group);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    hvd::DistributedOptimizer distributed(optimizer, hvd::named_parameters(*net), {}, group);
    for (int step = 0; step < 2; ++step) {
      distributed.zero_grad();
      loss_of(net, make_batch(step, group.rank()).to(device)).backward();
      distributed.step();
    }
    auto values = parameters_of(net);
    const torch::Tensor rows = torch::full({2 + group.rank(), 3}, 1.5 * (group.rank() + 1),
                                           torch::dtype(torch::kFloat).device(device));
    values.push_back(hvd::allgather(rows, group));
    values.push_back(hvd::allreduce(torch::ones({4}, device), hvd::Average, group));
    return values;
  });
}

TEST_P(DataParallelOnDevices, CheckpointsOfADeviceLoadOnAnotherAndOnTheCpu) {
  for (const int zero_level : {0, 3}) {
    const test::TemporaryFolder folder;
    std::filesystem::path path;
    std::vector<torch::Tensor> expected;
    run_device_ranks(2, [&](const Group& group, at::Device device) {
      Net net = make_net(1);
      net->to(device);
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
      auto parallel = parallelize(*net, {.zero_level = zero_level}, group);
      parallel.shard(optimizer);
      optimizer.zero_grad();
      loss_of(net, make_batch(0, group.rank()).to(device)).backward();
      optimizer.step();
      const auto saved = save_checkpoint({.folder = folder.path()}, parallel, *net, &optimizer, {});
      if (group.rank() == 0) path = saved;
      auto values = parameters_of(net);
      if (group.rank() == 0) expected = std::move(values);
    });
    const auto load = [&](const Group& group, at::Device device) {
      Net net = make_net(9);
      net->to(device);
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
      auto parallel = parallelize(*net, {.zero_level = 2}, group);
      parallel.shard(optimizer);
      load_checkpoint(path, parallel, *net, &optimizer);
      const auto got = parameters_of(net);
      for (std::size_t p = 0; p < got.size(); ++p) {
        EXPECT_EQ(got[p].device(), device);
        EXPECT_TRUE(torch::equal(got[p].cpu(), expected[p].cpu())) << "parameter " << p;
      }
      optimizer.zero_grad();
      loss_of(net, make_batch(1, group.rank()).to(device)).backward();
      optimizer.step();  // the state is where the parameters are
    };
    run_device_ranks(3, load);
    testing::run_ranks(1, [&](const Group& group) { load(group, at::kCPU); });
  }
}

}  // namespace
}  // namespace trireme
