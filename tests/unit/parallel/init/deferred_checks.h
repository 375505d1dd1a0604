// SPDX-License-Identifier: Apache-2.0
// What tests of deferred construction compare.
#pragma once

#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/base/error.h>
#include <trireme/parallel/init/deferred_scope.h>

#include <ATen/ThreadLocalState.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::test {

inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Bytes that this thread allocated by LibTorch's allocator and has not given back.
class CountedMemory {
 public:
  CountedMemory() : guard_(c10::DebugInfoKind::PROFILER_STATE, counts_) {}

  std::int64_t now() const { return counts_->now; }
  std::int64_t peak() const { return counts_->peak; }
  void forget_peak() { counts_->peak = counts_->now; }

 private:
  struct Counts final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                           c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t now = 0;
    std::int64_t peak = 0;
  };
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  c10::DebugInfoGuard guard_;
};

inline std::vector<torch::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> tensors = module.parameters();
  for (const torch::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

inline void expect_alike(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_EQ(got.strides(), expected.strides());
  EXPECT_EQ(got.dtype(), expected.dtype());
  EXPECT_EQ(got.device(), expected.device());
  EXPECT_EQ(got.requires_grad(), expected.requires_grad());
  EXPECT_EQ(got.is_leaf(), expected.is_leaf());
  EXPECT_EQ(got.storage_offset(), expected.storage_offset());
}

inline void expect_same_values(const torch::nn::Module& got, const torch::nn::Module& expected) {
  const auto got_tensors = tensors_of(got);
  const auto expected_tensors = tensors_of(expected);
  ASSERT_EQ(got_tensors.size(), expected_tensors.size());
  for (std::size_t i = 0; i < got_tensors.size(); ++i) {
    expect_alike(got_tensors[i], expected_tensors[i]);
    EXPECT_FALSE(detail::is_deferred(got_tensors[i]));
    EXPECT_TRUE(torch::equal(got_tensors[i], expected_tensors[i])) << "tensor " << i;
    EXPECT_EQ(got_tensors[i]._version(), expected_tensors[i]._version()) << "tensor " << i;
  }
}

// A module from any code that makes its tensors.
struct Custom : torch::nn::Module {
  using Make = std::function<void(Custom&)>;
  explicit Custom(const Make& make) { make(*this); }
  torch::Tensor parameter(const std::string& name, const torch::Tensor& value) {
    return register_parameter(name, value);
  }
  torch::Tensor buffer(const std::string& name, const torch::Tensor& value) {
    return register_buffer(name, value);
  }
  template <typename Holder>
  Holder module(const std::string& name, const Holder& holder) {
    return register_module(name, holder);
  }
};

inline std::shared_ptr<Custom> custom(const Custom::Make& make) {
  return std::make_shared<Custom>(make);
}

}  // namespace trireme::test
