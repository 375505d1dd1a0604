// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/sharded/shards.h>

#include <trireme/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme::detail {
namespace {

comm::Group same_ranks(const comm::Group& group) {
  if (group.size() == 1) return group;
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  return group.subgroup(all);
}

}  // namespace

Shards::Shards(const std::vector<NamedTensor>& parameters, std::vector<BucketLayout> buckets,
               comm::Group group)
    : parameters_(parameters), group_(std::move(group)), gathers_(same_ranks(group_)) {
  const at::NoGradGuard no_grad;
  std::vector<SlicedParameter> sliced(parameters_.size());
  std::vector<std::int64_t> elements;
  for (BucketLayout& layout : buckets) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.layout = std::move(layout);
    allocate(bucket);
    elements.push_back(bucket.memory.numel());
    for (const BucketLayout::Place& place : bucket.layout.places) {
      sliced[place.tensor] = cut(buckets_.size() - 1, place);
    }
  }
  optimizers_.emplace(std::move(sliced), std::move(elements), group_);
  for (const NamedTensor& parameter : parameters_) watch(parameter.tensor, *this);
}

Shards::~Shards() {
  const at::NoGradGuard no_grad;
  try {
    fetch();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the group is dead, and was reported
  }
  for (const NamedTensor& parameter : parameters_) {
    unwatch(parameter.tensor);
    at::Tensor own = at::empty_strided(parameter.tensor.sizes(), parameter.tensor.strides(),
                                       parameter.tensor.options().requires_grad(false));
    own.copy_(parameter.tensor);
    at::Tensor(parameter.tensor).set_data(own);
  }
}

void Shards::allocate(Bucket& bucket) {
  const at::Tensor& first = parameters_[bucket.layout.places.front().tensor].tensor;
  const std::int64_t unit =
      group_.size() * kAlignment / static_cast<std::int64_t>(first.element_size());
  const std::int64_t elements = (bucket.layout.elements + unit - 1) / unit * unit;
  bucket.memory =
      comm::zeros_registered({elements}, first.options().requires_grad(false), gathers_);
  for (const BucketLayout::Place& place : bucket.layout.places) {
    at::Tensor parameter = parameters_[place.tensor].tensor;
    const at::Tensor part =
        slice_of(bucket.memory, place.offset, parameter.sizes(), parameter.strides());
    part.copy_(parameter);
    parameter.set_data(part);
  }
}

// Finds what of a parameter lies in this rank's slice.
SlicedParameter Shards::cut(std::size_t number, const BucketLayout::Place& place) {
  Bucket& bucket = buckets_[number];
  const at::Tensor& parameter = parameters_[place.tensor].tensor;
  SlicedParameter sliced = {
      .parameter = parameter, .bucket = number, .place = place.offset, .part = {}};
  const std::int64_t slice_begin = group_.rank() * slice_elements(number);
  const std::int64_t slice_end = slice_begin + slice_elements(number);
  const std::int64_t begin = std::max(place.offset, slice_begin);
  const std::int64_t end = std::min(place.offset + parameter.numel(), slice_end);
  if (begin >= end) return sliced;
  sliced.offset = begin - place.offset;
  sliced.part = slice_of(bucket.memory, begin, at::IntArrayRef{end - begin}, at::IntArrayRef{1});
  sliced.part.set_requires_grad(true);
  bucket.shards.push_back(
      {.parameter = place.tensor, .begin = begin - slice_begin, .tensor = sliced.part});
  return sliced;
}

void Shards::set_gradient(const Shard& shard, const at::Tensor& slice) {
  at::Tensor(shard.tensor).mutable_grad() =
      slice_of(slice, slice.storage_offset() + shard.begin, at::IntArrayRef{shard.tensor.numel()},
               at::IntArrayRef{1});
}

void Shards::expect_step() {
  const std::lock_guard lock(mutex_);
  for (Bucket& bucket : buckets_) finish_gather(bucket);
  if (group_.size() == 1 || is_old_) return;
  is_old_ = true;
  expect_touches(true);
}

void Shards::touch(const c10::StorageImpl& storage) {
  const std::lock_guard lock(mutex_);
  if (is_old_) start_gathers();
  for (Bucket& bucket : buckets_) {
    if (bucket.memory.storage().unsafeGetStorageImpl() == &storage) finish_gather(bucket);
  }
}

void Shards::fetch() {
  const std::lock_guard lock(mutex_);
  if (is_old_) start_gathers();
  for (Bucket& bucket : buckets_) finish_gather(bucket);
}

// Of all buckets, those that forward needs first at first: it goes the other way than backward.
void Shards::start_gathers() {
  is_old_ = false;
  const at::NoGradGuard no_grad;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    const std::int64_t length = bucket->memory.numel() / group_.size();
    bucket->gather = comm::all_gather_async(
        bucket->memory, bucket->memory.narrow(0, group_.rank() * length, length), gathers_,
        "parameters");
    bucket->is_gathering = true;
    ++num_gathering_;
  }
}

void Shards::finish_gather(Bucket& bucket) {
  if (!bucket.is_gathering) return;
  bucket.gather.wait();
  bucket.is_gathering = false;
  if (--num_gathering_ == 0) expect_touches(false);
}

}  // namespace trireme::detail
