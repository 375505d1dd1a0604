// SPDX-License-Identifier: Apache-2.0
// The accelerator of the tests in this folder: the CUDA devices of this machine where LibTorch has
// CUDA, else the fake ones (tests/fake_device). Threads are ranks; several of them share a device
// where there are fewer.
#pragma once

#include <gmock/gmock.h>
#include <tests/ranks/device_engine.h>
#include <tests/ranks/thread_ranks.h>
#ifdef TRIREME_FAKE_DEVICE
#include <tests/fake_device/device.h>
#endif

#include <ATen/DeviceAccelerator.h>
#include <c10/core/AutogradState.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace trireme::testing {

/// The number of devices that ranks use: all, or less by the variable TRIREME_TEST_DEVICES.
inline int num_test_devices() {
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): a count, not a character
  const auto all = static_cast<int>(at::accelerator::deviceCount());
  const char* const wanted = std::getenv("TRIREME_TEST_DEVICES");
  return wanted == nullptr ? all : std::min(all, std::stoi(wanted));
}

/// The device of a rank.
inline at::Device test_device(int rank) {
  const auto index = rank % num_test_devices();
  return {at::accelerator::getAccelerator(true).value(), static_cast<c10::DeviceIndex>(index)};
}

/// Runs `body` on threads as ranks, each with its device as the current one. Autograd has one
/// thread for each device, on which the hooks of two ranks would wait for each other: ranks that
/// share a device run backward on their own threads.
inline void run_device_ranks(int size,
                             const std::function<void(const comm::Group&, at::Device)>& body) {
  run_ranks(size, [&](const comm::Group& group) {
    const at::Device device = test_device(group.rank());
    at::accelerator::setDeviceIndex(device.index());
    if (size > num_test_devices()) {
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    }
    body(group, device);
  });
}

/// Compares what was computed on an accelerator with the same of the CPU, or of one process. The
/// fake accelerator computes the bits of the CPU, CUDA adds in another order.
/// @param bound the relative difference that is allowed on the fake accelerator too.
inline void expect_same(const torch::Tensor& got, const torch::Tensor& expected,
                        const std::string& what, double bound = 0) {
#ifdef TRIREME_FAKE_DEVICE
  const bool is_same = bound == 0 ? torch::equal(got.cpu(), expected.cpu())
                                  : torch::allclose(got.cpu(), expected.cpu(), bound, bound);
#else
  const bool is_same = torch::allclose(got.cpu(), expected.cpu(), std::max(bound, 1e-3), 1e-4);
#endif
  EXPECT_TRUE(is_same) << what << " differs by " << (got.cpu() - expected.cpu()).abs().max();
}

/// Once through the memory of the host, once by an engine for accelerators. Reports races of the
/// fake accelerator.
class OnDevices : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    device_engine_of_ranks = GetParam() ? &device_engine() : nullptr;
#ifndef TRIREME_FAKE_DEVICE
    // Their rounding would hide what is compared.
    at::globalContext().setAllowTF32CuBLAS(false);
    at::globalContext().setAllowTF32CuDNN(false);
#endif
  }
  void TearDown() override {
    device_engine_of_ranks = nullptr;
#ifdef TRIREME_FAKE_DEVICE
    EXPECT_THAT(fake::take_races(), ::testing::IsEmpty());
#endif
  }

  /// What each rank computes on the CPU and on its device must be the same. `body` returns tensors
  /// on any device.
  static void compare_with_cpu(
      int ranks,
      const std::function<std::vector<torch::Tensor>(const comm::Group&, at::Device)>& body,
      double bound = 0) {
    std::vector<std::vector<torch::Tensor>> expected(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](const comm::Group& group) {
      expected[static_cast<std::size_t>(group.rank())] = body(group, at::kCPU);
    });
    run_device_ranks(ranks, [&](const comm::Group& group, at::Device device) {
      const auto got = body(group, device);
      const auto& wanted = expected[static_cast<std::size_t>(group.rank())];
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        expect_same(got[i], wanted[i],
                    "tensor " + std::to_string(i) + " of rank " + std::to_string(group.rank()),
                    bound);
      }
    });
  }
};

/// The names of OnDevices' parameters.
inline std::string name_of_way(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "ByTheirEngine" : "ThroughTheHost";
}

}  // namespace trireme::testing
