// SPDX-License-Identifier: Apache-2.0
// Large plain tensors that functions compute again and again in dry runs.
#include <trireme/tensor/dry_run/kept_constants.h>

#include <trireme/tensor/dry_run/dry_run.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace trireme::tensor {
namespace {

constexpr std::int64_t kLength = 4096;

// The cosines of rotary positions [kLength, 8].
at::Tensor cosines(double base = 0.5) {
  const at::Tensor frequencies = at::arange(8, at::kFloat).mul(-base).exp();
  const at::Tensor positions = at::arange(kLength, at::kFloat);
  return (positions.unsqueeze(1) * frequencies).cos();
}

TEST(KeptConstants, AreComputedOnceInAllDryRuns) {
  const at::Tensor expected = cosines();
  const KeptConstants constants;
  const void* memory = nullptr;
  for (int run = 0; run < 3; ++run) {
    const DryRun dry_run;
    for (int layer = 0; layer < 2; ++layer) {
      const at::Tensor found = cosines();
      EXPECT_TRUE(found.equal(expected));
      if (memory != nullptr) EXPECT_EQ(found.const_data_ptr(), memory);
      memory = found.const_data_ptr();
    }
  }
  // Positions, angles and cosines. The frequencies are small.
  EXPECT_EQ(constants.size(), 3U);
}

TEST(KeptConstants, DependOnAllArguments) {
  const at::Tensor expected = cosines(0.25);
  const KeptConstants constants;
  const DryRun dry_run;
  const at::Tensor other = cosines(0.5);
  EXPECT_TRUE(cosines(0.25).equal(expected));
  EXPECT_FALSE(other.equal(expected));
  EXPECT_EQ(at::arange(kLength, at::kDouble).scalar_type(), at::kDouble);
  EXPECT_EQ(at::arange(kLength, at::kLong).scalar_type(), at::kLong);
}

TEST(KeptConstants, AreNotChangedByWrites) {
  const at::Tensor expected = cosines();
  const KeptConstants constants;
  const DryRun dry_run;
  const at::Tensor first = cosines();
  const at::Tensor second = cosines();
  const at::Tensor written = cosines();
  written.add_(1);
  EXPECT_TRUE(first.equal(expected));
  EXPECT_TRUE(second.equal(expected));
  EXPECT_TRUE(cosines().equal(expected));
  EXPECT_TRUE(written.equal(expected + 1));
  // What is computed from a written tensor depends on its new values.
  const at::Tensor kept = first.cos();
  first.add_(1);
  EXPECT_TRUE(first.cos().equal((expected + 1).cos()));
  EXPECT_TRUE(kept.equal(expected.cos()));
  EXPECT_TRUE(second.cos().equal(kept));
}

TEST(KeptConstants, AreNoRandomNumbersAndNoOpenMemory) {
  const KeptConstants constants;
  const DryRun dry_run;
  EXPECT_FALSE(at::rand({kLength}).equal(at::rand({kLength})));
  const at::Tensor one = at::empty({kLength}, at::kFloat).fill_(1);
  const at::Tensor two = at::empty({kLength}, at::kFloat).fill_(2);
  EXPECT_EQ(one[5].item<float>(), 1);
  EXPECT_EQ(two[5].item<float>(), 2);
  EXPECT_EQ(constants.size(), 0U);
}

TEST(KeptConstants, AreForgottenWithTheDryRun) {
  const void* memory = nullptr;
  {
    const DryRun dry_run;
    const at::Tensor one = cosines();
    const at::Tensor two = cosines();
    EXPECT_EQ(one.const_data_ptr(), two.const_data_ptr());
    memory = KeptConstants::of_thread();
  }
  EXPECT_NE(memory, nullptr);
  EXPECT_EQ(KeptConstants::of_thread(), nullptr);
  const at::Tensor one = cosines();
  const at::Tensor two = cosines();
  EXPECT_NE(one.const_data_ptr(), two.const_data_ptr());
}

}  // namespace
}  // namespace trireme::tensor
