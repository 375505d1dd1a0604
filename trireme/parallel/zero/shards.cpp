// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/zero/shards.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/parallel/buckets/data_groups.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/module/local_memory.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <map>

namespace trireme::detail {
namespace {

// The memory that one thread steps at a time. Adam's four tensors and its temporaries of this size
// fit into a cache of 1 MiB.
constexpr std::int64_t kPieceBytes = 256 << 10;

std::vector<at::Tensor> pieces_of(const at::Tensor& part) {
  const std::int64_t length =
      kPieceBytes * at::get_num_threads() / static_cast<std::int64_t>(part.element_size());
  if (!part.is_cpu() || part.numel() < 2 * length) return {};
  std::vector<at::Tensor> pieces;
  for (std::int64_t begin = 0; begin < part.numel(); begin += length) {
    pieces.push_back(slice_of(part, begin, at::IntArrayRef{std::min(length, part.numel() - begin)},
                              at::IntArrayRef{1}));
    pieces.back().set_requires_grad(true);
  }
  return pieces;
}

}  // namespace

Shards::Shards(const std::vector<NamedTensor>& parameters, const std::vector<BucketLayout>& layouts,
               const Plan& plan, comm::Group group)
    : parameters_(memories_of(parameters)),
      is_offloaded_(plan.offload_optimizer),
      group_(std::move(group)),
      gathers_(duplicate(group_)),
      whole_(plan.gathered_buckets, gathers_),
      cut_gradients_(parameters) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& item : parameters) handles_.push_back(item.tensor);
  for (const BucketLayout& layout : layouts) buckets_.emplace_back().layout = layout;
  set_lengths(layouts);
  check_shares();
  std::map<std::size_t, SlicedParameter> by_parameter;
  for (Bucket& bucket : buckets_) allocate(bucket);
  load_deferred(plan.broadcast_parameters);
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    Bucket& bucket = buckets_[number];
    load(bucket);
    bucket_of_[bucket.memory.storage().unsafeGetStorageImpl()] = number;
    for (const BucketLayout::Place& place : bucket.layout.places) {
      by_parameter[place.tensor] = cut(number, place);
    }
  }
  std::vector<SlicedParameter> sliced;
  for (auto& [index, parameter] : by_parameter) {
    if (group_.size() > 1) {
      partial_.add(parameter.part);
      for (const at::Tensor& piece : parameter.pieces) partial_.add(piece);
    }
    sliced.push_back(std::move(parameter));
  }
  optimizers_.emplace(std::move(sliced), lengths_, group_);
  // Watch last: if something above threw, storages would be watched by a destroyed observer.
  for (const Bucket& bucket : buckets_) {
    for (const Shard& shard : bucket.shards) watch(shard.tensor, steps_);
    for (const BucketLayout::Place& place : bucket.layout.places) {
      watch(parameters_[place.tensor].tensor, *this);
    }
  }
  watch_on(watches_always());
}

std::vector<NamedTensor> Shards::own_parts() const {
  std::vector<NamedTensor> parts;
  for (const Bucket& bucket : buckets_) {
    for (const BucketLayout::Place& place : bucket.layout.places) {
      const auto [begin, end] = range_in_slice(bucket, place);
      if (begin == end) continue;
      parts.push_back({parameters_[place.tensor].name, bucket.own.narrow(0, begin, end - begin)});
    }
  }
  return parts;
}

void Shards::set_lengths(const std::vector<BucketLayout>& layouts) {
  for (const BucketLayout& layout : layouts) {
    lengths_.push_back(padded_elements(layout));
  }
}

// Returns the length of a bucket padded so that every rank's slice consists of whole cache lines.
std::int64_t Shards::padded_elements(const BucketLayout& layout) const {
  const at::Tensor& first = parameters_[layout.places.front().tensor].tensor;
  const std::int64_t unit =
      group_.size() * kAlignment / static_cast<std::int64_t>(first.element_size());
  return (layout.elements + unit - 1) / unit * unit;
}

// Every rank must own something, because it notices a step by accesses to its own parts.
void Shards::check_shares() const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    bool has_any = false;
    for (std::size_t number = 0; number < buckets_.size(); ++number) {
      has_any =
          has_any || lengths_[number] / group_.size() * rank < buckets_[number].layout.elements;
    }
    if (has_any) continue;
    throw UsageError(join_message("the module is too small to be cut for ", group_.size(),
                                  " ranks: rank ", rank, " would have nothing of it"),
                     "use a plan with a lower zero_level, or larger buckets");
  }
}

Shards::~Shards() {
  const at::NoGradGuard no_grad;
  // A rank that fails with an exception must not wait for the others.
  const bool with_others = std::uncaught_exceptions() == 0;
  try {
    if (with_others && !failure_) start_gathers_if_stepped();
    for (Bucket& bucket : buckets_) {
      if (with_others && !failure_) finish_gather(bucket);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the group is dead: reported
  }
  watch_on(false);
  for (const Bucket& bucket : buckets_) {
    unwatch(bucket.memory.storage());
    for (const Shard& shard : bucket.shards) unwatch(shard.tensor.storage());
  }
  // In reverse order: the buckets that forward needs first come first, as in a step.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    make_ordinary(*bucket);
  }
}

void Shards::make_ordinary(Bucket& bucket) {
  if (bucket.is_level_3()) {
    const bool with_others = std::uncaught_exceptions() == 0 && !failure_;
    try {
      whole_.restore(bucket.whole, with_others);
    } catch (const std::exception&) {
      failure_ = std::current_exception();
      whole_.restore(bucket.whole, /*with_others=*/false);
    }
  }
  for (const BucketLayout::Place& place : bucket.layout.places) {
    const at::Tensor& parameter = parameters_[place.tensor].tensor;
    unmark(parameter);
    at::Tensor own = at::empty_strided(parameter.sizes(), parameter.strides(),
                                       parameter.options().requires_grad(false));
    own.copy_(parameter);
    at::Tensor(parameter).set_data(own);
  }
  bucket.memory.reset();
}

void Shards::allocate(Bucket& bucket) {
  const at::Tensor& first = parameters_[bucket.layout.places.front().tensor].tensor;
  const std::int64_t length = lengths_[static_cast<std::size_t>(&bucket - buckets_.data())];
  const at::TensorOptions options = first.options().requires_grad(false);
  if (!bucket.is_level_3()) bucket.memory = comm::zeros_registered({length}, options, gathers_);
  const std::int64_t slice = length / group_.size();
  if (is_offloaded_) {
    const at::TensorOptions host = options.device(at::kCPU).pinned_memory(first.is_cuda());
    bucket.own = at::zeros({slice}, host);
    bucket.gradient = at::zeros({slice}, host);
  } else {
    bucket.own = bucket.is_level_3() ? at::zeros({slice}, options) : place_of_slice(bucket);
  }
}

// Returns the range of a whole bucket that belongs to this rank.
at::Tensor Shards::place_of_slice(const Bucket& bucket) const {
  const std::int64_t slice = bucket.memory.numel() / group_.size();
  return bucket.memory.narrow(0, group_.rank() * slice, slice);
}

at::Tensor Shards::beside_parts(Bucket& bucket, const at::Tensor& sum) const {
  if (!is_offloaded_) return sum;
  bucket.gradient.copy_(sum);
  return bucket.gradient;
}

// Computes the values of deferred parameters one by one, and keeps this rank's part of each.
void Shards::load_deferred(bool with_digests) {
  std::unordered_map<const c10::TensorImpl*, std::pair<Bucket*, const BucketLayout::Place*>> places;
  std::vector<at::Tensor> deferred;
  for (Bucket& bucket : buckets_) {
    for (const BucketLayout::Place& place : bucket.layout.places) {
      const at::Tensor& parameter = parameters_[place.tensor].tensor;
      if (!is_deferred(parameter)) continue;
      deferred.push_back(parameter);
      places[parameter.unsafeGetTensorImpl()] = {&bucket, &place};
    }
  }
  std::map<std::size_t, std::int64_t> digests;
  replay(deferred, [&](const at::Tensor& whole) {
    const auto [bucket, place] = places.at(whole.unsafeGetTensorImpl());
    copy_part(*bucket, *place, whole);
    if (with_digests) digests[place->tensor] = digest_of(whole);
  });
  for (const auto& [index, digest] : digests) {
    drawn_ += join_message(parameters_[index].name, " of digest ", digest, "\n");
  }
}

// Moves the parameters of a bucket into its memory, with their values.
void Shards::load(Bucket& bucket) {
  if (bucket.is_level_3()) {
    const at::Tensor& first = parameters_[bucket.layout.places.front().tensor].tensor;
    bucket.memory =
        at::empty({bucket.own.numel() * group_.size()}, first.options().requires_grad(false));
  }
  for (const BucketLayout::Place& place : bucket.layout.places) {
    at::Tensor parameter = parameters_[place.tensor].tensor;
    const at::Tensor part =
        slice_of(bucket.memory, place.offset, parameter.sizes(), parameter.strides());
    // Deferred parameters have no memory any more: load_deferred() has copied their parts.
    const bool has_values = parameter.numel() == 0 || parameter.storage().nbytes() > 0;
    if (!bucket.is_level_3()) part.copy_(parameter);
    if (has_values) copy_part(bucket, place, parameter);
    parameter.set_data(part);
  }
  if (!bucket.is_level_3()) return;
  const std::string names =
      list_text(bucket.layout.places, ", ", [&](const BucketLayout::Place& place) -> const auto& {
        return parameters_[place.tensor].name;
      });
  bucket.whole = whole_.add(bucket.memory, bucket.own, names);
}

// Returns the range of a parameter within this rank's slice, in elements of the slice; may be
// empty.
std::pair<std::int64_t, std::int64_t> Shards::range_in_slice(
    const Bucket& bucket, const BucketLayout::Place& place) const {
  const std::int64_t slice = bucket.own.numel();
  const std::int64_t from = place.offset - group_.rank() * slice;
  const std::int64_t begin = std::clamp<std::int64_t>(from, 0, slice);
  return {begin, std::clamp(from + parameters_[place.tensor].tensor.numel(), begin, slice)};
}

void Shards::copy_part(Bucket& bucket, const BucketLayout::Place& place, const at::Tensor& whole) {
  const auto [begin, end] = range_in_slice(bucket, place);
  if (begin == end) return;
  const std::int64_t offset = group_.rank() * bucket.own.numel() + begin - place.offset;
  bucket.own.narrow(0, begin, end - begin)
      .copy_(whole.as_strided({end - begin}, {1}, whole.storage_offset() + offset));
}

SlicedParameter Shards::cut(std::size_t number, const BucketLayout::Place& place) {
  Bucket& bucket = buckets_[number];
  const at::Tensor& parameter = parameters_[place.tensor].tensor;
  const auto [begin, end] = range_in_slice(bucket, place);
  // The part has a storage of its own over the same memory. That makes it possible to tell accesses
  // of the optimizer from accesses of the module.
  const at::Tensor part = at::from_blob(
      static_cast<std::byte*>(bucket.own.data_ptr()) +
          begin * static_cast<std::int64_t>(parameter.element_size()),
      {end - begin}, [own = bucket.own](void*) {}, bucket.own.options(), bucket.own.device());
  part.set_requires_grad(true);
  const std::vector<at::Tensor> pieces = pieces_of(part);
  mark(part);  // its storage is shared with its pieces, which are watched
  if (pieces.empty() && begin < end) {
    bucket.shards.push_back({place.tensor, begin, part, {}});
  }
  std::int64_t piece_begin = begin;
  for (const at::Tensor& piece : pieces) {
    bucket.shards.push_back({place.tensor, piece_begin, piece, {}});
    piece_begin += piece.numel();
  }
  const std::int64_t slice_begin = group_.rank() * bucket.own.numel();
  return {.parameter = handles_[place.tensor],
          .memory = parameter,
          .bucket = number,
          .place = place.offset,
          .part = part,
          .offset = begin < end ? slice_begin + begin - place.offset : 0,
          .pieces = pieces};
}

void Shards::set_gradient(Shard& shard, const at::Tensor& slice) {
  const std::int64_t begin = slice.storage_offset() + shard.begin;
  const bool is_there = shard.gradient.defined() && shard.gradient.is_alias_of(slice) &&
                        shard.gradient.storage_offset() == begin;
  if (!is_there) shard.gradient = slice_of(slice, begin, shard.tensor.sizes(), at::IntArrayRef{1});
  // The engine that wrote the gradient does not bump its version. Code that saved an earlier
  // gradient would otherwise not notice.
  shard.gradient.unsafeGetTensorImpl()->bump_version();
  shard.tensor.mutable_grad() = shard.gradient;
}

void Shards::watch_on(bool on) {
  if (std::exchange(is_watching_, on) != on) expect_accesses(on);
}

void Shards::check() {
  const std::lock_guard lock(mutex_);
  check_locked();
  for (Bucket& bucket : buckets_) finish_gather(bucket);
  watch_on(watches_always());
}

void Shards::check_without_waiting() {
  const std::lock_guard lock(mutex_);
  check_locked();
}

void Shards::check_locked() {
  if (failure_) std::rethrow_exception(failure_);
  cut_gradients_.clear();
  norm_check_.stop();
  check_memory();
  start_gathers_if_stepped();
  if (is_fetched_ && steps_.have_been) {
    throw UsageError(
        "an optimizer stepped after an operator had gathered the parameters that "
        "another step had changed",
        "call step() of all optimizers before anything touches the parameters");
  }
}

void Shards::check_memory() const {
  for (const Bucket& bucket : buckets_) {
    for (const BucketLayout::Place& place : bucket.layout.places) {
      const NamedTensor& item = parameters_[place.tensor];
      const bool is_there = memory_of(handles_[place.tensor]).is_same(item.tensor);
      if (is_there && item.tensor.has_storage() && item.tensor.is_alias_of(bucket.memory)) continue;
      throw UsageError(
          join_message("parameter ", item.name, " has other memory than parallelize gave it"),
          "load, move and cast a module before parallelize; into one that is sharded "
          "copy values with copy_");
    }
  }
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

void Shards::expect_step(bool all_ranks_see_it) {
  const std::lock_guard lock(mutex_);
  if (group_.size() == 1 && !is_offloaded_) return;
  // If nothing was touched since the previous expected step, that one must be noticed as well.
  sees_step_ = all_ranks_see_it && (is_fetched_ || sees_step_);
  is_fetched_ = false;
  watch_on(true);
  watch_gradients();
}

// Refuses clipping by the norm of this rank's parts until the next step begins.
void Shards::watch_gradients() {
  std::vector<at::Tensor> gradients;
  for (const Bucket& bucket : buckets_) {
    for (const Shard& shard : bucket.shards) {
      if (shard.tensor.grad().defined()) gradients.push_back(shard.tensor.grad());
    }
  }
  norm_check_.start(gradients, PartNormCheck::Norms::kOfOne);
}

void Shards::Steps::on_access(std::span<const TensorAccess> all) {
  const bool is_step = std::ranges::any_of(all, &TensorAccess::is_written);
  if (is_step) have_been = true;
  const std::lock_guard lock(shards.mutex_);
  if (is_step) shards.cut_gradients_.clear();
  shards.flush();
}

// Copies writes into whole parameters to the slices that optimizers step.
void Shards::flush() {
  whole_.flush();
  if (!is_offloaded_) return;  // slices share the memory of the whole parameters
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    if (std::exchange(bucket.is_written, false)) bucket.own.copy_(place_of_slice(bucket));
  }
}

void Shards::end_step() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  remembering_failure([&] { whole_.end_step(); });
}

void Shards::on_access(std::span<const TensorAccess> all) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  start_gathers_if_stepped();
  // Collected first, because the operator needs all its buckets at the same time.
  c10::SmallVector<std::size_t, 8> needed;
  for (const TensorAccess& access : all) {
    Bucket& bucket = buckets_[bucket_of_.at(access.storage)];
    if (bucket.is_level_3()) {
      needed.push_back(bucket.whole);
      continue;
    }
    finish_gather(bucket);
    bucket.is_written = bucket.is_written || access.is_written;
  }
  if (needed.empty()) return;
  remembering_failure([&] { whole_.need({needed.data(), needed.size()}); });
  for (const TensorAccess& access : all) {
    const Bucket& bucket = buckets_[bucket_of_.at(access.storage)];
    if (bucket.is_level_3() && access.is_written) whole_.expect_write(bucket.whole);
  }
}

void Shards::gather_parameters(bool also_cut) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  start_gathers_if_stepped();
  for (Bucket& bucket : buckets_) finish_gather(bucket);
  if (also_cut) remembering_failure([&] { whole_.need_all(); });
}

// Starts the gathers of all buckets in reverse order: forward needs the last buckets first.
void Shards::start_gathers_if_stepped() {
  // No step is expected, or the expected one has not happened yet.
  if (is_fetched_ || (sees_step_ && !steps_.have_been)) return;
  is_fetched_ = true;
  steps_.have_been = false;
  const at::NoGradGuard no_grad;
  flush();
  remembering_failure([&] { whole_.drop(); });
  remembering_failure([&] {
    for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
      if (!bucket->is_level_3()) start_gather(*bucket);
    }
  });
}

void Shards::start_gather(Bucket& bucket) {
  at::Tensor own = place_of_slice(bucket);
  if (is_offloaded_) own.copy_(bucket.own);
  // Only engines with shared memory allow input and output to overlap.
  if (gathers_.shared_memory() == nullptr) own = own.clone();
  bucket.gather = comm::all_gather_async(bucket.memory, own, gathers_, "parameters");
  bucket.is_gathering = true;
}

void Shards::finish_gather(Bucket& bucket) {
  if (!bucket.is_gathering) return;
  remembering_failure([&] { bucket.gather.wait(); });
  bucket.is_gathering = false;
}

// Runs `call` and keeps its exception for whoever touches the incomplete parameters next.
template <typename Call>
void Shards::remembering_failure(const Call& call) {
  try {
    call();
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

}  // namespace trireme::detail
