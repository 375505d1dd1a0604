// SPDX-License-Identifier: Apache-2.0
// Groups whose tensors are on accelerators: carried by an engine of their own, or copied through
// the memory of the host.
#include <trireme/comm/collectives.h>
#include <trireme/comm/device_monitor.h>

#include <gmock/gmock.h>
#include <tests/fake_device/device.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/device_engine.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using trireme::testing::run_ranks;
using trireme::testing::run_ranks_catching;
using namespace trireme::testing::fake;  // NOLINT(google-build-using-namespace)

constexpr at::DeviceType kFake = c10::kPrivateUse1;

// Once through the memory of the host, once by an engine for accelerators.
class GroupOnDevices : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    trireme::testing::device_engine_of_ranks =
        GetParam() ? &trireme::testing::device_engine() : nullptr;
  }
  void TearDown() override {
    trireme::testing::device_engine_of_ranks = nullptr;
    EXPECT_THAT(take_races(), IsEmpty());
  }
};

INSTANTIATE_TEST_SUITE_P(, GroupOnDevices, ::testing::Bool(), [](const auto& of) {
  return of.param ? "ByTheirEngine" : "ThroughTheHost";
});

torch::Tensor numbers(const Group& group, std::int64_t count, c10::Device where) {
  return (torch::arange(count, torch::kFloat) * 0.37 + group.rank()).to(where);
}

// Runs a collective on tensors of the CPU and of a device, and compares what it leaves.
void compare(const Group& group, const std::function<torch::Tensor(c10::Device)>& collective) {
  const torch::Tensor expected = collective(at::kCPU);
  const torch::Tensor got = collective(device(group.rank()));
  EXPECT_EQ(got.device(), device(group.rank()));
  EXPECT_TRUE(torch::equal(got.cpu(), expected)) << got.cpu() << expected;
}

TEST_P(GroupOnDevices, EveryCollectiveGivesTheBitsOfTheCpu) {
  run_ranks(3, [](const Group& group) {
    compare(group, [&](c10::Device where) {
      const torch::Tensor tensor = numbers(group, 12, where);
      all_reduce(tensor, group, ReduceOp::kAverage);
      return tensor;
    });
    compare(group, [&](c10::Device where) {  // dense in another order
      const torch::Tensor tensor = numbers(group, 12, where).view({3, 4}).t();
      all_reduce_async(tensor, group).wait();
      return tensor;
    });
    compare(group, [&](c10::Device where) {
      const torch::Tensor tensor = numbers(group, 12, where);
      broadcast(tensor, 1, group);
      return tensor;
    });
    compare(group, [&](c10::Device where) {
      const torch::Tensor output = torch::zeros({9}, where);
      all_gather(output, numbers(group, 3, where), group);
      return output;
    });
    compare(group, [&](c10::Device where) {
      const torch::Tensor output = torch::zeros({2}, where);
      reduce_scatter(output, numbers(group, 6, where), group);
      return output;
    });
    compare(group, [&](c10::Device where) {
      const torch::Tensor output = torch::zeros({6}, where);
      all_to_all(output, numbers(group, 6, where), group);
      return output;
    });
    compare(group, [&](c10::Device where) {
      const torch::Tensor output = torch::zeros({group.rank() == 2 ? 6 : 0}, where);
      gather(output, numbers(group, 2, where), 2, group);
      return output;
    });
    compare(group, [&](c10::Device where) {
      const torch::Tensor output = torch::zeros({2}, where);
      scatter(output, group.rank() == 0 ? numbers(group, 6, where) : torch::Tensor(), 0, group);
      return output;
    });
    compare(group, [&](c10::Device where) {
      const torch::Tensor tensor = numbers(group, 5, where);
      all_reduce_ordered(tensor, group);
      return tensor;
    });
    compare(group, [&](c10::Device where) {
      const torch::Tensor tensor = numbers(group, 4, where);
      reduce(tensor, 1, group);
      return group.rank() == 1 ? tensor : torch::zeros({1}, where);
    });
  });
}

TEST_P(GroupOnDevices, MessagesFollowWhatIsStillComputed) {
  run_ranks(2, [](const Group& group) {
    const c10::Device own = device(group.rank());
    const int peer = 1 - group.rank();
    const torch::Tensor sent = torch::full({100}, 2.0F, own) * 3 + group.rank();
    const torch::Tensor received = torch::ones({100}, own);
    const torch::Tensor before = received + 1;
    Work receives = receive_async(received, peer, group, 4);
    Work sends = send_async(sent, peer, group, 4);
    receives.wait();
    sends.wait();
    sent.zero_();
    EXPECT_TRUE(torch::equal((received + before).cpu(),
                             torch::full({100}, 8.0F + static_cast<float>(peer))));
  });
}

TEST_P(GroupOnDevices, SubgroupsAndTextWorkAsWithoutDevices) {
  run_ranks(3, [](const Group& group) {
    EXPECT_THAT(all_gather_text(std::to_string(group.rank()), group), ElementsAre("0", "1", "2"));
    EXPECT_EQ(group.engine(), "shm");
    EXPECT_EQ(group.stages(kFake), !GetParam());
    EXPECT_FALSE(group.stages(at::kCPU));
    EXPECT_EQ(group.carrier(kFake).engine(), GetParam() ? "device" : "shm");
    EXPECT_EQ(group.carrier(at::kCPU).engine(), "shm");
    const Group pair = group.subgroup(std::array{2, 0});
    if (group.rank() == 1) return;
    EXPECT_EQ(pair.carrier(kFake).engine(), GetParam() ? "device" : "shm");
    const torch::Tensor sum = torch::full({2}, group.rank() + 1, device(group.rank()));
    all_reduce(sum, pair);
    EXPECT_EQ(sum.sum().item<int>(), 8);
  });
}

TEST_P(GroupOnDevices, AbortEndsOperationsOnDevicesWithTheReason) {
  const auto thrown = run_ranks_catching(2, [](const Group& group) {
    if (group.rank() == 1) {
      group.abort("the lights went out");
      return;
    }
    for (int i = 0; i < 2; ++i) all_reduce(torch::ones({2}, device(0)), group);
  });
  EXPECT_THAT(trireme::testing::message_of<CommError>(thrown[0]), HasSubstr("the lights went out"));
}

TEST(GroupWithDeviceEngine, RefusesTensorsOfTwoKindsInOneCall) {
  trireme::testing::device_engine_of_ranks = &trireme::testing::device_engine();
  run_ranks(2, [](const Group& group) {
    const torch::Tensor here = torch::ones({2}, device(group.rank()));
    const auto message =
        trireme::test::usage_error([&] { all_gather(torch::zeros({4}), here, group); });
    EXPECT_THAT(message, AllOf(HasSubstr("all-gather was given a tensor of sizes [4]"),
                               HasSubstr("expected one on the device of the other tensor")));
    all_reduce(here, group);  // no rank is left waiting
  });
  trireme::testing::device_engine_of_ranks = nullptr;
}

// A work that the device never finishes, and that no thread waits for, like NCCL's where a rank
// does not come.
class NeverDone final : public c10d::Work {
 public:
  bool isCompleted() override { return false; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

// Carries the first operation, which proves the connection, and lets all others hang.
class StuckConnection final : public EngineConnection {
 public:
  explicit StuckConnection(c10::intrusive_ptr<c10d::Backend> carrier)
      : EngineConnection("stuck", carrier->getRank(), carrier->getSize()),
        carrier_(std::move(carrier)) {}

  TensorForm form() const override { return TensorForm::kAny; }
  WorkPtr submit(Operation operation) override {
    if (!is_proved_) {
      is_proved_ = true;
      return dynamic_cast<AdapterBackend&>(*carrier_).connection().submit(std::move(operation));
    }
    return c10::make_intrusive<NeverDone>();
  }
  void abort(const std::string& /*reason*/) override { ++aborted; }

  static inline std::atomic<int> aborted = 0;

 private:
  const c10::intrusive_ptr<c10d::Backend> carrier_;
  bool is_proved_ = false;
};

const Engine kStuck = {
    .name = "stuck",
    .device = kFake,
    .unavailable_because = []() -> std::string { return ""; },
    .connect = [](const EngineContext& context) -> c10::intrusive_ptr<c10d::Backend> {
      return c10::make_intrusive<AdapterBackend>(
          std::make_shared<StuckConnection>(threads_engine().connect(context)), context.timeout);
    },
    .summation_order = [](const EngineContext&) { return SummationOrder::kRank; }};

TEST(GroupWithDeviceEngine, NoticesAtTheDeadlineWhatTheHostDoesNotWaitFor) {
  trireme::testing::device_engine_of_ranks = &kStuck;
  StuckConnection::aborted = 0;
  const auto thrown = run_ranks_catching(
      2,
      [](const Group& group) {
        const torch::Tensor here = torch::ones({2}, device(group.rank()));
        all_reduce(here, group, ReduceOp::kSum, "the gradients");  // returns at once
        while (StuckConnection::aborted < 2) std::this_thread::yield();
        all_reduce(torch::ones({2}), group);  // the engine of the CPU goes on
        all_reduce(here, group);
      },
      std::chrono::milliseconds(1500));
  trireme::testing::device_engine_of_ranks = nullptr;
  for (const std::exception_ptr& each : thrown) {
    EXPECT_THAT(trireme::testing::message_of<CommError>(each),
                AllOf(HasSubstr("all-reduce, number 2, of group 'threads (stuck)' on rank "),
                      HasSubstr("it is not done after 1.5 s")));
  }
}

// A work that is done at once, and holds what it was given.
class OwningWork final : public c10d::Work {
 public:
  explicit OwningWork(std::shared_ptr<void> owned) : owned_(std::move(owned)) {}
  bool isCompleted() override { return true; }

 private:
  const std::shared_ptr<void> owned_;
};

TEST(DeviceMonitor, EndsOnItsOwnThreadWhereAnOperationIsItsLastOwner) {
  std::atomic<bool> is_seen = false;
  std::atomic<bool> is_gone = false;
  auto monitor = std::shared_ptr<DeviceMonitor>(
      new DeviceMonitor(std::chrono::seconds(60), {.on_end =
                                                       [&](auto) {
                                                         is_seen = true;
                                                         is_seen.notify_all();
                                                         std::this_thread::sleep_for(
                                                             std::chrono::milliseconds(50));
                                                       },
                                                   .find_failure = [] { return std::string(); },
                                                   .abort = [](const auto&) {}}),
      [&](DeviceMonitor* last) {
        delete last;
        is_gone = true;
        is_gone.notify_all();
      });
  monitor->follow({.work = c10::make_intrusive<OwningWork>(monitor),
                   .started = std::chrono::steady_clock::now(),
                   .failure = [](const auto&) { return std::exception_ptr(); }});
  is_seen.wait(false);
  monitor.reset();
  is_gone.wait(false);
}

TEST(EngineNames, AreReadByTypeOfDevice) {
  const auto read = [](std::string_view text) {
    const EngineNames names = EngineNames::parse(text);
    return names.cpu + " " + names.device;
  };
  EXPECT_EQ(read("auto"), "auto auto");
  EXPECT_EQ(read("gloo"), "gloo auto");
  EXPECT_EQ(read("nccl"), "auto nccl");
  EXPECT_EQ(read("staged"), "auto staged");
  EXPECT_EQ(read("cpu:mpi,cuda:staged"), "mpi staged");
  EXPECT_EQ(read("cuda:nccl"), "auto nccl");
  const auto refusal = [](std::string_view text) {
    try {
      static_cast<void>(EngineNames::parse(text));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(refusal("nccI"),
              AllOf(HasSubstr("no communication engine 'nccI'"), HasSubstr("shm")));
  EXPECT_THAT(refusal("cpu:nccl"), HasSubstr("engine nccl carries no tensors on cpu devices"));
  EXPECT_THAT(refusal("cuda:gloo"), HasSubstr("engine gloo carries no tensors on cuda devices"));
  EXPECT_THAT(refusal("cpu:shm,nccl"), HasSubstr("'nccl' names no type of device"));
  EXPECT_THAT(refusal("gpu:nccl"), HasSubstr("no type of device 'gpu'"));
  EXPECT_THAT(refusal("cpu:shm,cpu:gloo"), HasSubstr("name cpu twice"));
  EXPECT_THAT(refusal(""), HasSubstr("no communication engine ''"));
}

TEST(DeviceEngine, IsStagedWhereRanksShareADevice) {
  EngineContext context = {.size = 2, .machines = {"a", "a"}, .devices = {"0000:01", "0000:01"}};
  EXPECT_EQ(context.ranks_on_one_device(), std::pair(0, 1));
  EXPECT_EQ(choose_device_engine("auto", context), nullptr);
  EXPECT_EQ(choose_device_engine("staged", context), nullptr);
  context.machines = {"a", "b"};
  EXPECT_EQ(context.ranks_on_one_device(), std::nullopt);
  context.devices = {"", ""};
  EXPECT_EQ(context.ranks_on_one_device(), std::nullopt);
}

}  // namespace
}  // namespace trireme::comm
