// SPDX-License-Identifier: Apache-2.0
// Buckets of gradients as data parallel makes them, sent through a hook.
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/gradients/comm_hook.h>

#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace trireme::test {

using detail::NamedTensor;

/// Gradients of one dtype that share a bucket.
inline GradientBucket make_bucket(const std::vector<NamedTensor>& gradients,
                                  const comm::Group& group) {
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), 0);
  const auto layout = detail::assign_buckets(gradients, order, kNoLimit, kNoLimit).at(0);
  GradientBucket bucket;
  bucket.memory = comm::zeros_registered({layout.elements}, gradients[0].tensor.options(), group);
  for (const auto& place : layout.places) {
    const NamedTensor& gradient = gradients[place.tensor];
    bucket.gradients.push_back(detail::slice_of(
        bucket.memory, place.offset, gradient.tensor.sizes(), gradient.tensor.strides()));
    bucket.gradients.back().copy_(gradient.tensor);
    bucket.names.push_back(gradient.name);
  }
  return bucket;
}

/// One step with those buckets: all are started before the first is waited for.
inline std::vector<torch::Tensor> exchange_buckets(CommHook& hook,
                                                   const std::vector<std::vector<NamedTensor>>& all,
                                                   const comm::Group& group) {
  std::vector<GradientBucket> buckets;
  for (const auto& gradients : all) buckets.push_back(make_bucket(gradients, group));
  std::vector<std::function<void()>> finish;
  for (GradientBucket& bucket : buckets) finish.push_back(hook.start(bucket, group));
  for (const auto& function : finish) function();
  std::vector<torch::Tensor> sums;
  for (const GradientBucket& bucket : buckets) {
    sums.insert(sums.end(), bucket.gradients.begin(), bucket.gradients.end());
  }
  return sums;
}

/// One gradient in a bucket of its own.
inline torch::Tensor exchange_one(CommHook& hook, const torch::Tensor& gradient,
                                  const comm::Group& group) {
  return exchange_buckets(hook, {{{"weight", gradient}}}, group)[0];
}

/// Normal numbers that every rank can compute for every other.
inline torch::Tensor gradient_of(int rank, int step, at::IntArrayRef sizes,
                                 at::ScalarType dtype = at::kFloat) {
  const auto seed = static_cast<std::uint64_t>(1000L * step + rank);
  return torch::randn(sizes, at::detail::createCPUGenerator(seed), torch::dtype(dtype));
}

/// A left fold in rank order.
inline torch::Tensor sum_of_gradients(int ranks, int step, at::IntArrayRef sizes,
                                      at::ScalarType dtype = at::kFloat) {
  torch::Tensor sum = gradient_of(0, step, sizes, dtype);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + gradient_of(rank, step, sizes, dtype);
  return sum;
}

/// Also of what is not a number.
inline bool have_same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() &&
         torch::equal(a.contiguous().flatten().view(torch::kByte),
                      b.contiguous().flatten().view(torch::kByte));
}

inline bool is_same_on_all_ranks(const torch::Tensor& tensor, const comm::Group& group) {
  const torch::Tensor own = tensor.contiguous().flatten();
  const torch::Tensor all = torch::empty({group.size() * own.numel()}, own.options());
  comm::all_gather(all, own, group);
  for (const torch::Tensor& other : all.chunk(group.size())) {
    if (!have_same_bits(other, own)) return false;
  }
  return true;
}

/// Distance of two tensors, relative to the second.
inline double relative_error(const torch::Tensor& got, const torch::Tensor& expected) {
  return ((got - expected).norm() / expected.norm()).item<double>();
}

/// Whether every rank throws a UsageError with that text.
inline void expect_refused_on_all_ranks(int ranks, const std::function<void(comm::Group)>& body,
                                        const std::string& text) {
  for (const auto& thrown : testing::run_ranks_catching(ranks, body)) {
    EXPECT_THAT(testing::message_of<UsageError>(thrown), ::testing::HasSubstr(text));
  }
}

}  // namespace trireme::test
