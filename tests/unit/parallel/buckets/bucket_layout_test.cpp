// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/buckets/bucket_layout.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <set>
#include <vector>

namespace trireme::detail {
namespace {

constexpr std::int64_t kLarge = 1 << 20;

NamedTensor tensor(std::int64_t elements, at::ScalarType dtype = at::kFloat,
                   at::Device device = at::kCPU) {
  return {"", torch::empty({elements}, torch::dtype(dtype).device(device))};
}

std::vector<std::size_t> in_order(const std::vector<NamedTensor>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<std::vector<std::size_t>> contents(const std::vector<BucketLayout>& buckets) {
  std::vector<std::vector<std::size_t>> all;
  for (const BucketLayout& bucket : buckets) {
    all.emplace_back();
    for (const auto& place : bucket.places) all.back().push_back(place.tensor);
  }
  return all;
}

using Contents = std::vector<std::vector<std::size_t>>;

TEST(AssignBuckets, ClosesABucketWithTheTensorThatFillsIt) {
  const std::vector<NamedTensor> tensors(5, tensor(16));  // 64 bytes each
  EXPECT_EQ(contents(assign_buckets(tensors, in_order(tensors), 128, 128)),
            (Contents{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(contents(assign_buckets(tensors, in_order(tensors), 129, 129)),
            (Contents{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(contents(assign_buckets(tensors, in_order(tensors), 1, 1)),
            (Contents{{0}, {1}, {2}, {3}, {4}}));
}

TEST(AssignBuckets, GivesTheFirstBucketASizeOfItsOwn) {
  const std::vector<NamedTensor> tensors(6, tensor(16));
  EXPECT_EQ(contents(assign_buckets(tensors, in_order(tensors), 64, 192)),
            (Contents{{0}, {1, 2, 3}, {4, 5}}));
}

// The first that is full, not the first of each dtype.
TEST(AssignBuckets, HasOneFirstBucketAmongAllDtypes) {
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < 3; ++i) {
    tensors.push_back(tensor(16, at::kFloat));
    tensors.push_back(tensor(8, at::kDouble));
  }
  EXPECT_EQ(contents(assign_buckets(tensors, in_order(tensors), 64, 192)),
            (Contents{{0}, {1, 3, 5}, {2, 4}}));
}

TEST(AssignBuckets, TakesTensorsInTheOrderGiven) {
  const std::vector<NamedTensor> tensors(4, tensor(16));
  EXPECT_EQ(contents(assign_buckets(tensors, {3, 1, 0, 2}, 128, 128)), (Contents{{3, 1}, {0, 2}}));
}

TEST(AssignBuckets, PutsOneDeviceAndDtypeIntoABucket) {
  std::vector<NamedTensor> tensors;
  for (int round = 0; round < 3; ++round) {
    for (const at::Device device : {at::Device(at::kMeta), at::Device(at::kCPU)}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
        tensors.push_back(tensor(5 + round, dtype, device));
      }
    }
  }
  const auto buckets = assign_buckets(tensors, in_order(tensors), kLarge, kLarge);
  EXPECT_EQ(buckets.size(), 8U);
  for (const BucketLayout& bucket : buckets) {
    const at::Tensor& first = tensors[bucket.places.front().tensor].tensor;
    for (const auto& place : bucket.places) {
      EXPECT_EQ(tensors[place.tensor].tensor.device(), first.device());
      EXPECT_EQ(tensors[place.tensor].tensor.scalar_type(), first.scalar_type());
    }
  }
}

TEST(AssignBuckets, PutsOneKindIntoABucket) {
  const std::vector<NamedTensor> tensors(6, tensor(16));
  const auto buckets = assign_buckets(tensors, in_order(tensors), 128, 128, {0, 2, 0, 0, 2, 0});
  EXPECT_EQ(contents(buckets), (Contents{{0, 2}, {1, 4}, {3, 5}}));
  EXPECT_EQ(buckets[0].kind, 0);
  EXPECT_EQ(buckets[1].kind, 2);
  EXPECT_EQ(buckets[2].kind, 0);
}

TEST(AssignBuckets, LeavesOutWhatIsNotInTheOrder) {
  const std::vector<NamedTensor> tensors(4, tensor(16));
  EXPECT_EQ(contents(assign_buckets(tensors, {2, 0}, 1024, 1024)), (Contents{{2, 0}}));
}

// What is left over follows in the order in which it was opened, whatever devices are called: ranks
// with cuda:0 and cuda:1 must agree.
TEST(AssignBuckets, OrdersFullBucketsFirstAndOpenOnesAsTheyWereOpened) {
  const std::vector<NamedTensor> tensors = {
      tensor(4, at::kFloat, at::kMeta), tensor(4, at::kFloat, at::kCPU),
      tensor(4, at::kHalf, at::kCPU),   tensor(64, at::kDouble, at::kCPU),
      tensor(4, at::kFloat, at::kCPU),  tensor(4, at::kFloat, at::kMeta)};
  EXPECT_EQ(contents(assign_buckets(tensors, in_order(tensors), 256, 256)),
            (Contents{{3}, {0, 5}, {1, 4}, {2}}));
  std::vector<NamedTensor> renamed = tensors;
  for (NamedTensor& item : renamed) {
    const at::Device other = item.tensor.is_meta() ? at::kCPU : at::kMeta;
    item.tensor = torch::empty_like(item.tensor, item.tensor.options().device(other));
  }
  EXPECT_EQ(contents(assign_buckets(renamed, in_order(renamed), 256, 256)),
            contents(assign_buckets(tensors, in_order(tensors), 256, 256)));
}

// A bucket opened again after one of its kind was full keeps its place among the open ones.
TEST(AssignBuckets, GoesOnWithANewBucketWhereOneIsFull) {
  const std::vector<NamedTensor> tensors = {tensor(16), tensor(1, at::kDouble), tensor(16),
                                            tensor(1)};
  EXPECT_EQ(contents(assign_buckets(tensors, in_order(tensors), 64, 64)),
            (Contents{{0}, {2}, {3}, {1}}));
}

TEST(AssignBuckets, StartsEveryTensorAtAMultipleOf64BytesWithoutOverlap) {
  std::vector<NamedTensor> tensors;
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kDouble, at::kByte}) {
    for (const std::int64_t elements : {1, 7, 16, 17, 0, 63, 64, 65, 129}) {
      tensors.push_back(tensor(elements, dtype));
    }
  }
  for (const std::int64_t bytes : {1L, 100L, 300L, 1L << 20}) {
    std::set<std::size_t> seen;
    for (const BucketLayout& bucket : assign_buckets(tensors, in_order(tensors), bytes, bytes)) {
      std::int64_t end = 0;
      for (const auto& [index, offset] : bucket.places) {
        const at::Tensor& placed = tensors[index].tensor;
        EXPECT_EQ(offset * static_cast<std::int64_t>(placed.element_size()) % kAlignment, 0);
        EXPECT_GE(offset, end);
        end = offset + placed.numel();
        EXPECT_TRUE(seen.insert(index).second) << index;
      }
      const at::Tensor& first = tensors[bucket.places.front().tensor].tensor;
      EXPECT_GE(bucket.elements, end);
      EXPECT_EQ(bucket.elements * static_cast<std::int64_t>(first.element_size()) % kAlignment, 0);
    }
    EXPECT_EQ(seen.size(), tensors.size());
  }
}

// What fills a tensor up to 64 bytes does not fill a bucket.
TEST(AssignBuckets, CountsTheBytesOfTensorsAlone) {
  const std::vector<NamedTensor> tensors(3, tensor(1));
  const auto buckets = assign_buckets(tensors, in_order(tensors), 12, 12);
  ASSERT_EQ(contents(buckets), (Contents{{0, 1, 2}}));
  EXPECT_EQ(buckets[0].elements, 48);
}

TEST(AssignBuckets, MakesNoneOfNothing) { EXPECT_TRUE(assign_buckets({}, {}, 64, 64).empty()); }

TEST(SliceOf, HasTheShapeAndTheStridesOfAPermutedTensor) {
  const at::Tensor memory = torch::arange(64, torch::kFloat);
  const at::Tensor permuted =
      torch::empty({2, 3, 2, 2}).to(at::MemoryFormat::ChannelsLast).requires_grad_();
  const at::Tensor slice = slice_of(memory, 16, permuted.sizes(), permuted.strides());
  EXPECT_EQ(slice.sizes(), permuted.sizes());
  EXPECT_EQ(slice.strides(), permuted.strides());
  EXPECT_EQ(slice.const_data_ptr<float>(), memory.const_data_ptr<float>() + 16);
  EXPECT_EQ(slice[0][1][0][0].item<float>(), 17);  // channels lie next to each other
  slice.zero_();
  EXPECT_EQ(memory.sum().item<float>(), 63 * 32 - (16 + 39) * 12);
}

// A view could not: "Can't detach views in-place".
TEST(SliceOf, CanBeDetachedInPlaceByZeroGrad) {
  const at::Tensor memory = torch::zeros({32});
  at::Tensor parameter = torch::ones({4}, torch::requires_grad());
  parameter.mutable_grad() = slice_of(memory, 16, parameter.sizes(), parameter.strides());
  EXPECT_FALSE(parameter.grad().is_view());
  (parameter * parameter).sum().backward();
  EXPECT_EQ(memory.sum().item<float>(), 8);  // accumulated in the bucket
  torch::optim::SGD optimizer({parameter}, 0.1);
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_EQ(memory.sum().item<float>(), 0);
}

TEST(SliceOf, KeepsTheMemoryAlive) {
  at::Tensor slice;
  {
    const at::Tensor memory = torch::full({32}, 3.0F);
    slice = slice_of(memory, 16, at::IntArrayRef{4}, at::IntArrayRef{1});
  }
  EXPECT_EQ(slice.sum().item<float>(), 12);
}

}  // namespace
}  // namespace trireme::detail
