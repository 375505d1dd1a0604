// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/collator.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace trireme::data::detail {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1} << 20;

TEST(BatchMemory, IsUsedAgainOnceItsTensorEnds) {
  BatchMemory memory;
  at::Tensor first = memory.empty({2, kLarge}, at::kFloat);
  EXPECT_EQ(first.sizes(), (std::vector<std::int64_t>{2, kLarge}));
  EXPECT_EQ(first.scalar_type(), at::kFloat);
  EXPECT_TRUE(first.is_contiguous());
  const void* const place = first.const_data_ptr();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % 64, 0U);
  at::Tensor view = first[1];
  first.reset();
  EXPECT_NE(memory.empty({2, kLarge}, at::kFloat).const_data_ptr(), place) << "a view uses it";
  view.reset();
  std::vector<const void*> places;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 2; ++i) tensors.push_back(memory.empty({2, kLarge}, at::kFloat));
  for (const at::Tensor& tensor : tensors) places.push_back(tensor.const_data_ptr());
  EXPECT_EQ(std::ranges::count(places, place), 1);
}

TEST(BatchMemory, TakesAPieceOfTheSameSizeOnly) {
  BatchMemory memory;
  const void* const place = memory.empty({kLarge}, at::kDouble).const_data_ptr();
  const at::Tensor other = memory.empty({kLarge}, at::kFloat);
  EXPECT_NE(other.const_data_ptr(), place);
  EXPECT_EQ(memory.empty({2, kLarge}, at::kFloat).const_data_ptr(), place);
}

TEST(BatchMemory, EndsAfterItsTensorsAndOnAnyThread) {
  std::optional<BatchMemory> memory(std::in_place);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 20; ++i) tensors.push_back(memory->empty({kLarge}, at::kByte));
  std::jthread([&] { tensors.resize(10); }).join();
  at::Tensor last = memory->empty({kLarge}, at::kByte);
  memory.reset();
  tensors.clear();
  last.fill_(7);
  EXPECT_EQ(last[kLarge - 1].item<int>(), 7);
}

TEST(BatchMemory, MakesSmallAndEmptyTensorsToo) {
  BatchMemory memory;
  EXPECT_EQ(memory.empty({3, 0}, at::kLong).numel(), 0);
  EXPECT_EQ(memory.empty({3, 5}, at::kLong).numel(), 15);
}

}  // namespace
}  // namespace trireme::data::detail
