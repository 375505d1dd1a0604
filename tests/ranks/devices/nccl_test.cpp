// SPDX-License-Identifier: Apache-2.0
// The engine NCCL, on a machine with a CUDA device. One device serves one rank of NCCL, so more
// ranks than devices are tested for their error alone.
#include <trireme/comm/engines/nccl/nccl.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>

#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::testing::run_ranks_catching;

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    const Engine engine = nccl_engine();
    const std::string reason = engine.unavailable_because();
    if (!reason.empty()) GTEST_SKIP() << "no NCCL here: " << reason;
  }
};

std::vector<at::Tensor> list(const at::Tensor& tensor) { return {tensor}; }

TEST_F(Nccl, OneRankMovesItsTensors) {
  EngineContext context = {.store = c10::make_intrusive<c10d::HashStore>(),
                           .timeout = std::chrono::seconds(30)};
  const auto backend = nccl_engine().connect(context);
  const torch::Tensor tensor = torch::arange(1000, torch::device(at::kCUDA).dtype(at::kFloat));
  auto tensors = list(tensor * 2);
  const auto work = backend->allreduce(tensors);
  work->wait();
  EXPECT_TRUE(torch::equal(tensors[0], tensor * 2));
  torch::Tensor output = torch::zeros({1000}, tensor.options());
  torch::Tensor input = tensor + 1;
  backend->_allgather_base(output, input)->wait();
  EXPECT_TRUE(torch::equal(output, input));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!work->isCompleted() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(work->isCompleted());
}

TEST_F(Nccl, RefusesRanksThatShareADeviceByTheirNumbers) {
  EngineContext context = {.store = c10::make_intrusive<c10d::HashStore>(),
                           .rank = 1,
                           .size = 2,
                           .timeout = std::chrono::seconds(30),
                           .devices = {"0000:01:00.0", "0000:01:00.0"}};
  try {
    static_cast<void>(nccl_engine().connect(context));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ranks 0 and 1 of 'world' share a CUDA device"),
                                    HasSubstr("cuda:staged")));
  }
}

// Two threads on one device, of which the engine was told nothing: NCCL's own error must arrive.
TEST_F(Nccl, PassesOnTheErrorOfNcclWhereRanksShareADevice) {
  const Engine engine = nccl_engine();
  trireme::testing::device_engine_of_ranks = &engine;
  const auto thrown = run_ranks_catching(2, [](const Group&) {}, std::chrono::seconds(20));
  trireme::testing::device_engine_of_ranks = nullptr;
  for (const std::exception_ptr& each : thrown) {
    EXPECT_THAT(trireme::testing::message_of<CommError>(each), HasSubstr("nccl"));
  }
}

TEST_F(Nccl, IdentifiesADeviceByItsAddress) {
  EXPECT_THAT(identity_of(at::Device(at::kCUDA, 0)), HasSubstr(":"));
  EXPECT_NE(identity_of(at::Device(at::kCUDA, 0)), "cuda:0");
}

}  // namespace
}  // namespace trireme::comm
