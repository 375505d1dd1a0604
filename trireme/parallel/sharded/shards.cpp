// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/sharded/shards.h>

#include <trireme/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

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
  check_shares(buckets);
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
  // Last: an exception before would leave them watched by what is gone.
  for (const Bucket& bucket : buckets_) {
    for (const Shard& shard : bucket.shards) watch(shard.tensor, steps_);
  }
  for (const NamedTensor& parameter : parameters_) watch(parameter.tensor, *this);
}

// Of a bucket with what fills it up, as many slices of whole cache lines as there are ranks.
std::int64_t Shards::padded_elements(const BucketLayout& layout) const {
  const at::Tensor& first = parameters_[layout.places.front().tensor].tensor;
  const std::int64_t unit =
      group_.size() * kAlignment / static_cast<std::int64_t>(first.element_size());
  return (layout.elements + unit - 1) / unit * unit;
}

// A step is noticed by what it does to the parts of this rank.
void Shards::check_shares(const std::vector<BucketLayout>& layouts) const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (std::any_of(layouts.begin(), layouts.end(), [&](const BucketLayout& layout) {
          return padded_elements(layout) / group_.size() * rank < layout.elements;
        })) {
      continue;
    }
    throw UsageError(join_message("the module is too small to be cut for ", group_.size(),
                                  " ranks: rank ", rank, " would have nothing of it"),
                     "use a plan with zero_stage 0");
  }
}

Shards::~Shards() {
  const at::NoGradGuard no_grad;
  // A rank that an exception ends must not wait for the others.
  if (std::uncaught_exceptions() == 0) {
    try {
      fetch();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the group is dead: reported
    }
  }
  watch_on(false);
  for (const Bucket& bucket : buckets_) {
    unwatch(bucket.memory.storage());
    for (const Shard& shard : bucket.shards) unwatch(shard.tensor.storage());
  }
  for (const NamedTensor& parameter : parameters_) {
    unmark(parameter.tensor);
    at::Tensor own = at::empty_strided(parameter.tensor.sizes(), parameter.tensor.strides(),
                                       parameter.tensor.options().requires_grad(false));
    own.copy_(parameter.tensor);
    at::Tensor(parameter.tensor).set_data(own);
  }
}

void Shards::allocate(Bucket& bucket) {
  const at::Tensor& first = parameters_[bucket.layout.places.front().tensor].tensor;
  bucket.memory = comm::zeros_registered({padded_elements(bucket.layout)},
                                         first.options().requires_grad(false), gathers_);
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
  // A storage of its own over the same memory tells the optimizer's operators from the module's.
  sliced.part = at::from_blob(
      static_cast<std::byte*>(bucket.memory.data_ptr()) +
          begin * static_cast<std::int64_t>(parameter.element_size()),
      {end - begin}, [memory = bucket.memory](void*) {}, bucket.memory.options());
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

void Shards::watch_on(bool on) {
  if (std::exchange(is_watching_, on) != on) expect_touches(on);
}

void Shards::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  for (const Bucket& bucket : buckets_) {
    for (const BucketLayout::Place& place : bucket.layout.places) {
      const auto& [name, tensor] = parameters_[place.tensor];
      if (tensor.has_storage() && tensor.is_alias_of(bucket.memory)) continue;
      throw UsageError(
          join_message("parameter ", name, " has other memory than parallelize gave it"),
          "load, move and cast a module before parallelize; into one that is sharded "
          "copy values in place");
    }
  }
  if (is_fetched_ && steps_.have_been) {
    throw UsageError(
        "an optimizer stepped after an operator had fetched the parameters that "
        "another step had changed",
        "call step() of all optimizers before anything touches the parameters");
  }
  for (Bucket& bucket : buckets_) finish_gather(bucket);
  watch_on(false);
}

void Shards::mark_owners(std::size_t bucket, const BucketLayout::Place& place,
                         std::vector<bool>& ranks) const {
  const std::int64_t length = parameters_[place.tensor].tensor.numel();
  if (length == 0) return;
  const std::int64_t slice = slice_elements(bucket);
  for (std::int64_t rank = place.offset / slice; rank <= (place.offset + length - 1) / slice;
       ++rank) {
    ranks[static_cast<std::size_t>(rank)] = true;
  }
}

void Shards::expect_step_of(const std::vector<bool>& ranks) {
  const std::lock_guard lock(mutex_);
  if (group_.size() == 1) return;
  const bool all_see = std::all_of(ranks.begin(), ranks.end(), [](bool sees) { return sees; });
  // Where nothing was touched since the step before, that one is to be seen too.
  sees_step_ = all_see && (is_fetched_ || sees_step_);
  is_fetched_ = false;
  watch_on(true);
}

void Shards::touch(const c10::StorageImpl& storage, bool /*is_written*/) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  start_gathers_if_stepped();
  for (Bucket& bucket : buckets_) {
    if (bucket.memory.storage().unsafeGetStorageImpl() == &storage) finish_gather(bucket);
  }
}

void Shards::fetch() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  start_gathers_if_stepped();
  for (Bucket& bucket : buckets_) finish_gather(bucket);
}

// Of all buckets, those that forward needs first at first: it goes the other way than backward.
void Shards::start_gathers_if_stepped() {
  if (is_fetched_ || (sees_step_ && !steps_.have_been)) return;
  is_fetched_ = true;
  steps_.have_been = false;
  const at::NoGradGuard no_grad;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    const std::int64_t length = bucket->memory.numel() / group_.size();
    at::Tensor own = bucket->memory.narrow(0, group_.rank() * length, length);
    if (gathers_.shared_memory() == nullptr) own = own.clone();  // others refuse overlaps
    bucket->gather = comm::all_gather_async(bucket->memory, own, gathers_, "parameters");
    bucket->is_gathering = true;
  }
}

void Shards::finish_gather(Bucket& bucket) {
  if (!bucket.is_gathering) return;
  try {
    bucket.gather.wait();
  } catch (...) {
    failure_ = std::current_exception();  // for whoever touches what is not whole
    throw;
  }
  bucket.is_gathering = false;
}

}  // namespace trireme::detail
