// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/zero/gathered_buckets.h>

#include <trireme/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <numeric>

namespace trireme::detail {
namespace {

void set_memory(const at::Tensor& tensor, c10::DataPtr&& memory, std::int64_t bytes) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(static_cast<std::size_t>(bytes));
}

void take_memory(const at::Tensor& tensor) {
  set_memory(tensor, c10::DataPtr(nullptr, tensor.device()), 0);
}

// Lends the memory of one tensor to the storage of another, which keeps it alive.
void give_memory(const at::Tensor& tensor, const at::Tensor& memory) {
  set_memory(tensor,
             c10::DataPtr(
                 memory.data_ptr(), new at::Tensor(memory),
                 [](void* held) { delete static_cast<at::Tensor*>(held); }, tensor.device()),
             static_cast<std::int64_t>(memory.nbytes()));
}

}  // namespace

GatheredBuckets::GatheredBuckets(std::int64_t most, comm::Group group)
    : most_(most), group_(std::move(group)) {}

std::size_t GatheredBuckets::add(const at::Tensor& memory, const at::Tensor& own,
                                 std::string names) {
  Bucket& bucket = buckets_.emplace_back();
  bucket.memory = memory;
  bucket.own = own;
  bucket.names = std::move(names);
  take_memory(memory);
  return buckets_.size() - 1;
}

void GatheredBuckets::need(std::span<const std::size_t> numbers) {
  // While everything is whole, a rank may read parameters alone. Nothing is learnt from it.
  if (all_are_whole_) return;
  if (numbers.size() == 1 && numbers[0] == last_two_.second) {
    const Bucket& same = buckets_[numbers[0]];
    if (same.place != kNone && !same.is_gathering) return;
  }
  const at::NoGradGuard no_grad;
  ++clock_;
  for (const std::size_t number : numbers) buckets_[number].last_need = clock_;
  bool is_another = false;
  for (const std::size_t number : numbers) {
    if (number != last_two_.second) compare_need(static_cast<std::int64_t>(number));
    is_another = follow(number) || is_another;
    if (buckets_[number].place == kNone) start_gather(number, /*may_grow=*/true);
  }
  if (is_another) gather_ahead();
  for (const std::size_t number : numbers) finish_gather(buckets_[number]);
}

// Detects ranks that run different operators. They would gather different buckets and get wrong
// values, or wait for each other until the deadline. Costs a message of 8 bytes, which the engine
// of CPU tensors carries: the host does not wait for an accelerator.
void GatheredBuckets::compare_need(std::int64_t need) {
  if (group_.size() == 1) return;
  if (!own_need_.defined()) {
    own_need_ = at::zeros({1}, at::kLong);
    all_needs_ = at::zeros({group_.size()}, at::kLong);
  }
  own_need_.fill_(need);
  comm::all_gather(all_needs_, own_need_, group_, "needed parameters");
  const auto* const all = all_needs_.const_data_ptr<std::int64_t>();
  const auto* const other =
      std::find_if(all, all + group_.size(), [&](std::int64_t number) { return number != all[0]; });
  if (other == all + group_.size()) return;
  throw UsageError(
      join_message(
          "ranks run different operators on parameters that are cut (ZeRO level 3): rank 0 ",
          describe(all[0]), ", rank ", other - all, " ", describe(*other)),
      kSameOperators);
}

std::string GatheredBuckets::describe(std::int64_t need) const {
  if (need == kNothing) return "has ended the step";
  if (need == kAll) return "makes all parameters whole";
  return "needs " + buckets_[static_cast<std::size_t>(need)].names;
}

void GatheredBuckets::end_step() {
  if (buckets_.empty() || all_are_whole_) return;
  const at::NoGradGuard no_grad;
  compare_need(kNothing);
}

void GatheredBuckets::need_all() {
  if (buckets_.empty() || all_are_whole_) return;
  std::vector<std::size_t> all(buckets_.size());
  std::iota(all.rbegin(), all.rend(), 0);
  last_two_ = {kNone, kNone};  // this order says nothing about operators
  const at::NoGradGuard no_grad;
  compare_need(kAll);
  ++clock_;
  for (Bucket& bucket : buckets_) bucket.last_need = clock_;
  for (const std::size_t number : all) {
    if (buckets_[number].place == kNone) start_gather(number, /*may_grow=*/true);
  }
  for (Bucket& bucket : buckets_) finish_gather(bucket);
  all_are_whole_ = true;
}

// Learns which bucket follows the last two. Returns false if it is the same bucket again.
bool GatheredBuckets::follow(std::size_t number) {
  if (number == last_two_.second) return false;
  successors_[last_two_] = number;
  last_two_ = {last_two_.second, number};
  return true;
}

// Starts gathers of the buckets predicted next, as far as places are free or hold older buckets.
void GatheredBuckets::gather_ahead() {
  const std::int64_t ahead = most_ == 0 ? 1 : std::max<std::int64_t>(1, most_ - 2);
  Pair last_two = last_two_;
  for (std::int64_t i = 0; i < ahead; ++i) {
    const auto next = successors_.find(last_two);
    if (next == successors_.end()) return;
    Bucket& bucket = buckets_[next->second];
    bucket.last_need = clock_;
    if (bucket.place == kNone && !start_gather(next->second, /*may_grow=*/false)) return;
    last_two = {last_two.second, next->second};
  }
}

bool GatheredBuckets::start_gather(std::size_t number, bool may_grow) {
  Bucket& bucket = buckets_[number];
  bucket.place = find_place(bucket, may_grow);
  if (bucket.place == kNone) return false;
  Place& place = places_[bucket.place];
  place.bucket = number;
  set_memory(bucket.memory, c10::DataPtr(place.memory.data_ptr(), bucket.memory.device()),
             bucket.bytes());
  bucket.gather = comm::all_gather_async(bucket.memory, bucket.own.to(bucket.memory.device()),
                                         group_, "parameters " + bucket.names);
  bucket.is_gathering = true;
  return true;
}

// Returns a place that is free, or holds the bucket that was not needed for the longest time, and
// is long enough. If there is none, adds a place, or enlarges the oldest one at the limit. Places
// never shrink, so that allocations soon stop.
std::size_t GatheredBuckets::find_place(const Bucket& bucket, bool may_grow) {
  const auto age = [&](const Place& place) {  // 0 if it is free
    return place.bucket == kNone ? 0 : buckets_[place.bucket].last_need;
  };
  std::size_t best = kNone;
  std::size_t oldest = kNone;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.memory.device() != bucket.memory.device() || age(place) == clock_) continue;
    if (most_ == 0 && place.bucket != kNone) continue;
    if (oldest == kNone || age(place) < age(places_[oldest])) oldest = i;
    const bool fits = place.memory.numel() >= bucket.bytes();
    if (fits && (best == kNone || age(place) < age(places_[best]))) best = i;
  }
  const bool has_room = most_ == 0 || std::ssize(places_) < most_;
  if (best != kNone && (age(places_[best]) == 0 || !has_room)) {
    leave_place(best);
    return best;
  }
  const at::TensorOptions bytes = bucket.memory.options().dtype(at::kByte);
  if (!has_room && oldest != kNone) {
    leave_place(oldest);
    places_[oldest].memory.reset();
    places_[oldest].memory = at::empty({bucket.bytes()}, bytes);
    return oldest;
  }
  if (!has_room && !may_grow) return kNone;
  places_.push_back({at::empty({bucket.bytes()}, bytes), kNone});
  return places_.size() - 1;
}

void GatheredBuckets::finish_gather(Bucket& bucket) {
  if (!bucket.is_gathering) return;
  bucket.gather.wait();
  bucket.is_gathering = false;
}

void GatheredBuckets::leave_place(std::size_t number) {
  Place& place = places_[number];
  if (place.bucket == kNone) return;
  Bucket& bucket = buckets_[std::exchange(place.bucket, kNone)];
  finish_gather(bucket);
  if (bucket.is_written) bucket.own.copy_(slice_in(bucket));
  bucket.is_written = false;
  take_memory(bucket.memory);
  bucket.place = kNone;
}

at::Tensor GatheredBuckets::slice_in(const Bucket& bucket) const {
  return bucket.memory.narrow(0, group_.rank() * bucket.own.numel(), bucket.own.numel());
}

void GatheredBuckets::flush() {
  if (!has_written_) return;
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    if (bucket.is_written && bucket.place != kNone) bucket.own.copy_(slice_in(bucket));
    bucket.is_written = false;
  }
  has_written_ = false;
}

void GatheredBuckets::drop() {
  flush();
  all_are_whole_ = false;
  const at::NoGradGuard no_grad;
  for (std::size_t place = 0; place < places_.size(); ++place) leave_place(place);
  if (most_ > 0 && std::ssize(places_) > most_) places_.resize(static_cast<std::size_t>(most_));
  last_two_ = {kNone, kNone};
}

void GatheredBuckets::restore(std::size_t number, bool with_others) {
  const at::NoGradGuard no_grad;
  successors_.clear();  // predicted buckets may be restored already
  all_are_whole_ = false;
  Bucket& bucket = buckets_[number];
  if (with_others) need({&number, 1});
  const at::Tensor memory = at::zeros({bucket.memory.numel()}, bucket.memory.options());
  if (with_others) {
    memory.copy_(bucket.memory);
  } else {
    memory.narrow(0, group_.rank() * bucket.own.numel(), bucket.own.numel()).copy_(bucket.own);
  }
  if (bucket.place != kNone) {
    Place& place = places_[std::exchange(bucket.place, kNone)];
    place.bucket = kNone;
    // Keep the memory of a gather that nobody waits for: it may still write there. This leak is
    // accepted because the process is about to end.
    if (bucket.is_gathering) static_cast<void>(new at::Tensor(std::exchange(place.memory, {})));
  }
  give_memory(bucket.memory, memory);
  bucket.memory.reset();
  bucket.own.reset();
}

}  // namespace trireme::detail
