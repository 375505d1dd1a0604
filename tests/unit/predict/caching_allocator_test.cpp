// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/caching_allocator.h>

#include <gtest/gtest.h>

namespace trireme::predict {
namespace {

constexpr double kMiB = 1 << 20;

TEST(CachingAllocator, TakesSmallTensorsFromSegmentsOf2MiB) {
  CachingAllocator allocator;
  allocator.allocate(0, 100);
  allocator.allocate(1, kMiB);
  EXPECT_EQ(allocator.reserved(), 2 * kMiB);
  allocator.allocate(2, kMiB);  // 512 bytes are missing
  EXPECT_EQ(allocator.reserved(), 4 * kMiB);
  EXPECT_EQ(allocator.peak_in_use(), 2 * kMiB + 100);
}

TEST(CachingAllocator, TakesMediumTensorsFromSegmentsOf20MiB) {
  CachingAllocator allocator;
  allocator.allocate(0, 9 * kMiB);
  allocator.allocate(1, 9 * kMiB);
  EXPECT_EQ(allocator.reserved(), 20 * kMiB);
  allocator.allocate(2, 3 * kMiB);
  EXPECT_EQ(allocator.reserved(), 40 * kMiB);
}

TEST(CachingAllocator, RoundsSegmentsOfLargeTensorsTo2MiB) {
  CachingAllocator allocator;
  allocator.allocate(0, 11 * kMiB);
  EXPECT_EQ(allocator.reserved(), 12 * kMiB);
}

TEST(CachingAllocator, ReusesWhatIsFree) {
  CachingAllocator allocator;
  allocator.allocate(0, 40 * kMiB);
  allocator.free(0);
  allocator.allocate(1, 30 * kMiB);
  allocator.allocate(2, 10 * kMiB);  // the rest of the same segment
  EXPECT_EQ(allocator.reserved(), 40 * kMiB);
  EXPECT_EQ(allocator.peak_in_use(), 40 * kMiB);
}

TEST(CachingAllocator, LosesGapsBetweenTensorsThatStay) {
  CachingAllocator allocator;
  for (int i = 0; i < 4; ++i) allocator.allocate(i, 12 * kMiB);
  allocator.free(0);
  allocator.free(2);
  allocator.allocate(4, 24 * kMiB);  // as much is free, in two segments
  EXPECT_EQ(allocator.reserved(), 72 * kMiB);
  EXPECT_EQ(allocator.peak_in_use(), 48 * kMiB);
}

TEST(CachingAllocator, JoinsNeighboursThatAreFree) {
  CachingAllocator allocator;
  allocator.allocate(0, 40 * kMiB);
  allocator.free(0);
  for (int i = 1; i <= 4; ++i) allocator.allocate(i, 10 * kMiB);
  for (const int i : {2, 4, 3, 1}) allocator.free(i);
  allocator.allocate(5, 40 * kMiB);
  EXPECT_EQ(allocator.reserved(), 40 * kMiB);
}

TEST(CachingAllocator, IgnoresWhatIsEmptyOrUnknown) {
  CachingAllocator allocator;
  allocator.allocate(0, 0);
  allocator.free(0);
  allocator.free(7);
  EXPECT_EQ(allocator.reserved(), 0);
}

}  // namespace
}  // namespace trireme::predict
