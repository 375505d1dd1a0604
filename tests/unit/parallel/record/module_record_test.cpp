// SPDX-License-Identifier: Apache-2.0
// That the record of a module has the layouts which a run on the same cluster chooses.
#include <trireme/parallel/record/module_record.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/one_host.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <set>

namespace trireme {
namespace {

using test::one_host;
using testing::Contains;
using testing::Not;

// Two layers whose outputs are sharded. The second one needs the output of the first whole, which
// is 80 KiB, or the columns of its weight, of which each rank has rows: 256 KiB.
std::multiset<Collective> collectives_of_forward(const cluster::Cluster* cluster) {
  using torch::nn::Linear;
  using torch::nn::LinearOptions;
  torch::nn::Sequential model(Linear(LinearOptions(256, 256).bias(false)), torch::nn::ReLU(),
                              Linear(LinearOptions(256, 256).bias(false)));
  Plan plan = {.mesh = {{"tensor", 4}}};
  plan.layouts = {{"*.weight", {{"tensor", Shard{0}}}}};
  const ModuleRecord record = record_module(
      *model, plan, [&] { return model->forward(torch::ones({80, 256})).square().mean(); },
      cluster);
  std::multiset<Collective> all;
  for (int call = 0; call < record.num_forward; ++call) {
    for (const Transfer& transfer : record.call(call).transfers) all.insert(transfer.collective);
  }
  return all;
}

// A gather sends more bytes than the exchange of the weight, and copies less.
TEST(ModuleRecord, HasTheCollectivesThatAreCheapestOnTheLinksOfTheCluster) {
  const cluster::Cluster fast = one_host(50);
  EXPECT_THAT(collectives_of_forward(&fast), Contains(Collective::kAllGather));
  EXPECT_THAT(collectives_of_forward(&fast), Not(Contains(Collective::kAllToAll)));
  const cluster::Cluster slow = one_host(0.05);
  EXPECT_THAT(collectives_of_forward(&slow), Contains(Collective::kAllToAll));
  EXPECT_THAT(collectives_of_forward(&slow), Not(Contains(Collective::kAllGather)));
}

TEST(ModuleRecord, WithoutAClusterHasThoseOfTheDefaultLink) {
  cluster::Cluster like_the_default = one_host(5);
  // Copies at 10 GB/s, which start at once.
  like_the_default.devices[0].memory_gb_per_s = 20 / like_the_default.devices[0].efficiency.memory;
  like_the_default.devices[0].kernel_us = 0.2;
  EXPECT_EQ(collectives_of_forward(nullptr), collectives_of_forward(&like_the_default));
}

TEST(ModuleRecord, NeedsAsManyDevicesAsRanks) {
  cluster::Cluster small = one_host(50);
  small.hosts[0].devices = 2;
  EXPECT_THAT(test::message_of<UsageError>([&] { collectives_of_forward(&small); }),
              testing::HasSubstr("cluster test has 2 devices, and 4 ranks need one each"));
}

// Tensors that forward makes and frees may get the same memory, and numbers become tensors on the
// way to an operator: neither may change what is counted from run to run.
TEST(ModuleRecord, CountsTensorsThatForwardMakesAndNoNumbers) {
  torch::nn::Linear model(8, 8);
  const auto input_bytes = [&](bool with_numbers) {
    return record_module(*model, {.mesh = {{"data", 1}}},
                         [&] {
                           at::Tensor sum = model->forward(torch::ones({4, 8}));
                           for (int i = 0; i < 20; ++i) {
                             sum = sum + torch::full({8}, i);
                             if (with_numbers) sum = sum.mul(2).add_(1);
                           }
                           return sum.mean();
                         })
        .input_bytes;
  };
  const double expected = sizeof(float) * 4 * 8 + 20 * sizeof(std::int64_t) * 8;
  EXPECT_EQ(input_bytes(false), expected);
  EXPECT_EQ(input_bytes(true), expected);
}

}  // namespace
}  // namespace trireme
