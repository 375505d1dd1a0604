// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/init/construction.h>

#include <trireme/base/error.h>
#include <trireme/tensor/ivalue_tensors.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
namespace trireme::detail {
namespace {

// Before LibTorch 2.12 there was no function that lets a storage allow access again. An explicit
// template instantiation may name a private member, which gives access to the flag.
void set_refuses(c10::StorageImpl& storage, bool refuses);
template <bool c10::StorageImpl::* kMember>
struct Reach {
  friend void set_refuses(c10::StorageImpl& storage, bool refuses) { storage.*kMember = refuses; }
};
template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace
}  // namespace trireme::detail
#endif

namespace trireme::detail {
namespace {

constexpr auto kNoMemory =
    "this tensor was made under trireme::deferred() and has no memory yet. hint: before training "
    "call trireme::parallelize or trireme::materialize; after training in stages, where its values "
    "are with another rank, call gather_parameters() of the TrainingStep or Model, for materialize "
    "would give initial values; a tensor that is neither "
    "parameter nor buffer of the module needs a call of materialize for itself; a constructor that "
    "fills a tensor through its pointer (torch::tensor, accessor) has to run without deferred()";

void forget_place(void* place) { delete static_cast<Construction::Place*>(place); }

// While it lives, operators on this thread run without being recorded and without autograd and
// autocast.
struct Plainly {
  c10::impl::ExcludeDispatchKeyGuard not_recorded{c10::DispatchKeySet(kDeferredKey) |
                                                  c10::autocast_dispatch_keyset};
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like) {
  const c10::DispatchKeySet keys(
      c10::computeDispatchKey(like.scalar_type(), like.layout(), storage.device()));
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                      like.storage_offset());
  tensor._set_conj(like.is_conj());
  tensor._set_neg(like.is_neg());
  return tensor;
}

at::Tensor bytes_of(const c10::Storage& storage) {
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(
          c10::computeDispatchKey(c10::ScalarType::Byte, c10::Layout::Strided, storage.device())),
      caffe2::TypeMeta::Make<std::uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(storage.nbytes())});
  return bytes;
}

std::string_view bytes_of_state(const at::Tensor& state) {
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

std::size_t hash_of_state(const at::Tensor& state) {
  return std::hash<std::string_view>{}(bytes_of_state(state));
}

// Returns a different seed each time. A generator that is still in the parked state has therefore
// not been used since.
std::uint64_t parking_seed(const at::Tensor& state) {
  static std::atomic<std::uint64_t> count = 0;
  return hash_of_state(state) + 0x9e3779b97f4a7c15U * ++count;
}

// The finished constructions of this thread. Kept by thread, so that ranks that are threads of one
// process do not continue each other's random numbers.
std::vector<std::weak_ptr<Construction>>& parked_here() {
  thread_local std::vector<std::weak_ptr<Construction>> constructions;
  return constructions;
}

}  // namespace

void refuse_access(c10::StorageImpl& storage, std::string message) {
  // In spite of its name, this function keeps the memory.
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
}

void allow_access(c10::StorageImpl& storage) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
  set_refuses(storage, false);
#else
  storage.clear_data_ptr_access_error_msg_();
#endif
}

void set_memory(c10::StorageImpl& storage, c10::DataPtr memory) {
  allow_access(storage);
  storage.set_data_ptr_noswap(std::move(memory));
}

Construction::Place* Construction::place_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &forget_place) return nullptr;
  auto* const place = static_cast<Place*>(data.get_context());
  return place->is_given_up ? nullptr : place;
}

const Construction::Place* Construction::find(const at::Tensor& tensor) { return place_of(tensor); }

void Construction::give_up_if_written(const at::Tensor& tensor) {
  Place* const place = place_of(tensor);
  if (place == nullptr || place->memory == nullptr || !place->memory->is_touched()) return;
  place->is_given_up = true;
  place->construction.reset();
}

// Returns the data pointer of a deferred storage: null, with its place in this construction as the
// context. Where only shapes matter, it points to addresses without memory.
c10::DataPtr Construction::no_memory(std::size_t block, c10::Device device, std::size_t nbytes) {
  auto place = std::make_unique<Place>(shared_from_this(), block);
  if (deferral_ == Deferral::kShapes && device.is_cpu()) {
    place->memory = std::make_unique<ReservedMemory>(nbytes);
    if (place->memory->address() == nullptr) place->memory.reset();
  }
  void* const address = place->memory == nullptr ? nullptr : place->memory->address();
  return {address, place.release(), &forget_place, device};
}

at::Tensor Construction::make(const at::Tensor& meta, c10::Device device) {
  const std::size_t nbytes = meta.storage().nbytes();
  const auto storage_of = [&](c10::DataPtr memory, bool resizable) {
    return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, std::move(memory),
                        c10::GetAllocator(device.type()), resizable);
  };
  c10::Storage storage = storage_of(no_memory(blocks_.size(), device, nbytes), true);
  if (storage.data() == nullptr) refuse_access(*storage.unsafeGetStorageImpl(), kNoMemory);
  blocks_.push_back({.stand_in = storage_of({nullptr, device}, false), .before = {}});
  return tensor_over(std::move(storage), meta);
}

void Construction::take(const at::Tensor& tensor, bool keep_values) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto storage_of = [&](c10::DataPtr memory) {
    return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory),
                        storage.allocator(), false);
  };
  c10::DataPtr none = no_memory(blocks_.size(), storage.device(), storage.nbytes());
  c10::DataPtr memory = storage.set_data_ptr(std::move(none));
  blocks_.push_back({.stand_in = storage_of({nullptr, storage.device()}),
                     .before = keep_values ? storage_of(std::move(memory)) : c10::Storage()});
  if (storage.data() == nullptr) refuse_access(storage, kNoMemory);
}

at::Tensor Construction::stand_in(const at::Tensor& tensor) const {
  return tensor_over(blocks_[find(tensor)->block].stand_in, tensor);
}

// ---- Random numbers ----

bool Construction::Stream::is_parked_in(const at::Tensor& state) const {
  return !parked.empty() && parked.back() == hash_of_state(state);
}

// The original is parked in a new state after each draw. If it is in any other state at the next
// draw, the constructor has seeded it or restored a state, which the record must repeat.
at::Generator Construction::draw_from(const at::Generator& generator, Record& record) {
  auto stream = std::find_if(streams_.begin(), streams_.end(),
                             [&](const Stream& known) { return known.original == generator; });
  at::Generator original = generator;
  const std::lock_guard lock(original.mutex());
  const at::Tensor state = original.get_state();
  if (stream == streams_.end()) {
    // A finished construction may have parked the generator; this one then continues it.
    std::shared_ptr<Construction> previous = parked_at(original, state);
    if (previous == nullptr) check_was_not_parked(state);
    record.state = 0;
    streams_.push_back({.original = original,
                        .own = original.clone(),
                        .start = state,
                        .states = {previous == nullptr ? state : at::Tensor()},
                        .previous = std::move(previous),
                        .parked = {},
                        .end = {},
                        .is_replaced = false});
    stream = std::prev(streams_.end());
  } else if (!stream->is_parked_in(state)) {
    const bool is_start = bytes_of_state(state) == bytes_of_state(stream->start);
    if (!is_start) check_was_not_parked(state);
    record.state = stream->states.size();
    stream->states.push_back(is_start ? stream->states.front() : state);
  }
  record.random = static_cast<std::size_t>(stream - streams_.begin());
  park(*stream, state);
  return stream->own;
}

void Construction::park(Stream& stream, const at::Tensor& state) {
  stream.original.set_current_seed(parking_seed(state));
  stream.parked.push_back(hash_of_state(stream.original.get_state()));
}

bool Construction::has_parked(const at::Tensor& state) const {
  const std::size_t hash = hash_of_state(state);
  return std::any_of(streams_.begin(), streams_.end(), [&](const Stream& stream) {
    return std::find(stream.parked.begin(), stream.parked.end(), hash) != stream.parked.end();
  });
}

void Construction::check_was_not_parked(const at::Tensor& state) const {
  bool was_parked = has_parked(state);
  for (const std::weak_ptr<Construction>& weak : parked_here()) {
    const std::shared_ptr<Construction> finished = weak.lock();
    was_parked = was_parked || (finished != nullptr && finished->has_parked(state));
  }
  if (!was_parked) return;
  throw UsageError(
      "the constructor under trireme::deferred() draws from a random generator in a state that was "
      "read, or copied with clone(), after numbers had been drawn; those are drawn only when the "
      "module is made parallel",
      "take the state, or the clone, before the first draw, or build the module without "
      "deferred()");
}

void Construction::finish() { parked_here().push_back(weak_from_this()); }

void Construction::abandon() {
  for (Stream& stream : streams_) {
    stream.parked.clear();
    const std::lock_guard lock(stream.original.mutex());
    stream.original.set_state(stream.start);
  }
}

std::shared_ptr<Construction> Construction::parked_at(const at::Generator& generator,
                                                      const at::Tensor& state) {
  auto& constructions = parked_here();
  std::erase_if(constructions, [](const auto& construction) { return construction.expired(); });
  for (const std::weak_ptr<Construction>& weak : constructions) {
    std::shared_ptr<Construction> construction = weak.lock();
    if (construction == nullptr) continue;
    for (const Stream& stream : construction->streams_) {
      if (stream.original == generator && stream.is_parked_in(state)) return construction;
    }
  }
  return nullptr;
}

at::Tensor Construction::end_of(const at::Generator& generator) {
  const auto stream = std::find_if(streams_.begin(), streams_.end(), [&](const Stream& known) {
    return known.original == generator;
  });
  if (!stream->end.defined()) run(std::vector<bool>(blocks_.size(), false), true, nullptr);
  return stream->end;
}

void Construction::resolve_starts() {
  for (Stream& stream : streams_) {
    if (stream.previous == nullptr) continue;
    const at::Tensor start = stream.previous->end_of(stream.original);
    for (at::Tensor& state : stream.states) {
      if (!state.defined()) state = start;
    }
    stream.previous.reset();
  }
}

void Construction::advance_generators() {
  for (Stream& stream : streams_) {
    if (stream.is_replaced || stream.parked.empty()) continue;
    const std::lock_guard lock(stream.original.mutex());
    if (stream.is_parked_in(stream.original.get_state())) stream.original.set_state(stream.end);
  }
}

std::vector<at::Tensor> Construction::states() {
  resolve_starts();
  std::vector<at::Tensor> all;
  for (const Stream& stream : streams_) {
    all.insert(all.end(), stream.states.begin(), stream.states.end());
  }
  return all;
}

void Construction::set_states(const std::vector<at::Tensor>& states) {
  auto next = states.begin();
  for (Stream& stream : streams_) {
    for (at::Tensor& state : stream.states) {
      if (bytes_of_state(state) != bytes_of_state(*next)) stream.is_replaced = true;
      state = *next++;
    }
    stream.end.reset();
  }
}

// ---- Running ----

// Walks back from the wanted values to the records that compute them.
std::vector<bool> Construction::select(std::vector<bool> wanted, bool draw_all) const {
  std::vector<bool> selected(records_.size(), false);
  for (std::size_t i = records_.size(); i-- > 0;) {
    const Record& record = records_[i];
    const bool is_needed = std::any_of(record.uses.begin(), record.uses.end(), [&](const Use& use) {
      return use.access != Access::kRead && wanted[use.block];
    });
    if (!is_needed && !(draw_all && record.random)) continue;
    selected[i] = true;
    for (const Use& use : record.uses) {
      wanted[use.block] = use.access == Access::kRead || use.access == Access::kUpdate;
    }
  }
  return selected;
}

bool Construction::is_random(const std::vector<bool>& wanted) const {
  const std::vector<bool> selected = select(wanted, false);
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (selected[i] && records_[i].random) return true;
  }
  return false;
}

// Returns the order of execution. Random draws keep the recorded order. Other records run as early
// as possible: a constructor may draw all tensors first and scale them afterwards, and would
// otherwise need memory for all of them at once.
std::vector<std::size_t> Construction::order(const std::vector<bool>& selected) const {
  std::vector<std::vector<std::size_t>> next(records_.size());
  std::vector<std::size_t> num_before(records_.size(), 0);
  std::vector<std::optional<std::size_t>> last_use(blocks_.size());
  std::optional<std::size_t> last_random;
  const auto follows = [&](std::size_t record, std::optional<std::size_t>& last) {
    if (last) {
      next[*last].push_back(record);
      ++num_before[record];
    }
    last = record;
  };
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (!selected[i]) continue;
    for (const Use& use : records_[i].uses) follows(i, last_use[use.block]);
    if (records_[i].random) follows(i, last_random);
  }
  std::vector<std::size_t> order;
  std::vector<bool> is_done(records_.size(), false);
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (!selected[i] || is_done[i]) continue;
    std::vector<std::size_t> ready = {i};
    while (!ready.empty()) {
      const std::size_t record = ready.back();
      ready.pop_back();
      is_done[record] = true;
      order.push_back(record);
      for (const std::size_t follower : next[record]) {
        if (--num_before[follower] == 0 && !records_[follower].random) ready.push_back(follower);
      }
    }
  }
  return order;
}

// Decides after each use if the block's memory is kept. It is dropped if the block is filled again
// before anything reads it.
std::vector<Construction::Step> Construction::plan(const std::vector<bool>& selected) const {
  std::vector<Step> steps;
  for (const std::size_t record : order(selected)) steps.push_back({record, {}});
  std::vector<std::optional<Access>> next(blocks_.size());
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    for (const Use& use : records_[step->record].uses) {
      const auto access = next[use.block];
      const bool is_needed = access == Access::kRead || access == Access::kUpdate;
      step->after.push_back(is_needed ? After::kKeep : access ? After::kDrop : After::kFinal);
      next[use.block] = use.access;
    }
  }
  return steps;
}

// Takes the memory of all stand-ins back at the end, also if an operator throws.
class Construction::Loan {
 public:
  explicit Loan(Construction& construction) : construction_(construction) {}
  ~Loan() { construction_.end_loans(); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

 private:
  Construction& construction_;
};

void Construction::end_loans() {
  for (std::size_t block = 0; block < blocks_.size(); ++block) take_memory(block);
}

void Construction::lend(std::size_t block, c10::DataPtr memory) {
  blocks_[block].stand_in.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}

c10::DataPtr Construction::take_memory(std::size_t block) {
  c10::Storage& stand_in = blocks_[block].stand_in;
  return stand_in.set_data_ptr({nullptr, stand_in.device()});
}

void Construction::allocate(const Use& use) {
  Block& block = blocks_[use.block];
  if (use.access == Access::kMake || block.stand_in.data() != nullptr) return;
  const c10::DeviceGuard on(block.stand_in.device());
  lend(use.block, block.stand_in.allocator()->allocate(block.stand_in.nbytes()));
  if (use.access == Access::kFill) return;
  const Plainly plainly;
  at::Tensor bytes = bytes_of(block.stand_in);
  block.before ? bytes.copy_(bytes_of(block.before)) : bytes.zero_();
}

void Construction::adopt(const at::Tensor& result, const at::Tensor& place) {
  TRIREME_CHECK_EQ(result.sizes(), place.sizes());
  const c10::Storage& from = result.storage();
  c10::StorageImpl& to = *place.storage().unsafeGetStorageImpl();
  // The memory of the result is taken over if it has exactly the predicted form, else copied.
  const bool is_alike = result.strides() == place.strides() && result.dtype() == place.dtype() &&
                        result.device() == place.device() &&
                        result.storage_offset() == place.storage_offset() &&
                        from.nbytes() == to.nbytes() && from.use_count() == 1 &&
                        result.is_conj() == place.is_conj() && result.is_neg() == place.is_neg();
  if (is_alike) {
    c10::DataPtr none(nullptr, to.device());
    to.set_data_ptr_noswap(from.unsafeGetStorageImpl()->set_data_ptr(std::move(none)));
  } else {
    to.set_data_ptr_noswap(to.allocator()->allocate(to.nbytes()));
    place.copy_(result);
  }
}

void Construction::execute(const Record& record) {
  const Plainly plainly;
  if (record.state) {
    Stream& stream = streams_[*record.random];
    stream.own.set_state(stream.states[*record.state]);
  }
  torch::jit::Stack stack = record.arguments;
  record.op.callBoxed(stack);
  std::vector<at::Tensor> made;
  for (const c10::IValue& value : stack) {
    tensor::visit_tensors(value, [&](const at::Tensor& tensor) { made.push_back(tensor); });
  }
  stack.clear();
  for (std::size_t i = 0; i < record.results.size(); ++i) {
    if (record.results[i].defined()) adopt(made[i], record.results[i]);
  }
}

void Construction::run(const std::vector<bool>& wanted, bool draw_all, const OnValues& on_values) {
  if (draw_all) resolve_starts();
  const Loan loan(*this);
  const std::vector<Step> steps = plan(select(wanted, draw_all));
  std::vector<bool> is_used(blocks_.size(), false);
  for (const Step& step : steps) {
    for (const Use& use : records_[step.record].uses) is_used[use.block] = true;
  }
  const auto give = [&](std::size_t block) {
    c10::DataPtr memory = take_memory(block);
    if (wanted[block]) on_values(block, std::move(memory));
  };
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    // No record uses this block: it gets the values from before take(), or zeros.
    if (!wanted[block] || is_used[block]) continue;
    allocate({block, Access::kUpdate});
    give(block);
  }
  for (const Step& step : steps) {
    const Record& record = records_[step.record];
    for (const Use& use : record.uses) allocate(use);
    execute(record);
    for (std::size_t i = 0; i < record.uses.size(); ++i) {
      if (step.after[i] == After::kDrop) take_memory(record.uses[i].block);
      if (step.after[i] == After::kFinal) give(record.uses[i].block);
    }
  }
  if (!draw_all) return;
  for (Stream& stream : streams_) stream.end = stream.own.get_state();
}

}  // namespace trireme::detail
