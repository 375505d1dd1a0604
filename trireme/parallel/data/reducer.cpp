// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/data/reducer.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

namespace trireme::detail {
namespace {

namespace autograd = torch::autograd;

// LibTorch's vectorised kernels give other bits at other alignments; its own allocator aligns to 64
// bytes.
constexpr std::int64_t kAlignment = 64;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::int64_t aligned_elements(const at::Tensor& tensor) {
  const auto element = static_cast<std::int64_t>(tensor.element_size());
  return round_up(tensor.numel() * element, kAlignment) / element;
}

// A slice of `memory` that autograd does not take for a view, so that zero_grad(false) may detach
// it in place.
at::Tensor slice_of(const at::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes,
                    at::IntArrayRef strides) {
  return at::empty({0}, memory.options()).set_(memory.storage(), offset, sizes, strides);
}

}  // namespace

class Reducer::Hook final : public autograd::PostAccumulateGradHook {
 public:
  Hook(Reducer* reducer, std::size_t slot) : reducer_(reducer), slot_(slot) {}
  void operator()(const autograd::Variable&) override { reducer_->on_gradient(slot_); }

 private:
  Reducer* reducer_;  // outlives the hook: its destructor takes all hooks out
  std::size_t slot_;
};

Reducer::Reducer(const std::vector<NamedTensor>& parameters, const std::vector<at::Tensor>& buffers,
                 const Plan& plan, comm::Group group)
    : plan_(plan), group_(std::move(group)), buffers_(buffers, group_) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters) slots_.emplace_back().parameter = parameter;
  connect_streams();
  assign_buckets();
  install_hooks();
}

Reducer::~Reducer() {
  for (const Slot& slot : slots_) {
    autograd::impl::set_post_acc_grad_hooks(slot.parameter.tensor, nullptr);
  }
}

void Reducer::connect_streams() {
  const std::int64_t count = plan_.allreduce_streams > 0
                                 ? plan_.allreduce_streams
                                 : Settings::from(Environment::of_process()).allreduce_streams;
  const auto counts = comm::all_gather_text(std::to_string(count), group_);
  for (std::size_t rank = 1; rank < counts.size(); ++rank) {
    if (counts[rank] == counts[0]) continue;
    throw UsageError(join_message("rank 0 sends gradients over ", counts[0], " streams, rank ",
                                  rank, " over ", counts[rank]),
                     "give all ranks the same TRIREME_ALLREDUCE_STREAMS or plan");
  }
  streams_.push_back(group_);
  std::vector<int> all(static_cast<std::size_t>(group_.size()));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t stream = 1; stream < count; ++stream) streams_.push_back(group_.subgroup(all));
}

void Reducer::assign_buckets() {
  // One open bucket per device and dtype; it closes, and takes its place in the order, when it is
  // full. Those left over follow in the order in which they were opened, which is the same on all
  // ranks whatever their devices are called.
  struct Open {
    at::Device device;
    at::ScalarType dtype;
    Bucket bucket;
    std::int64_t bytes = 0;
  };
  std::vector<Open> all_open;
  for (std::size_t slot = slots_.size(); slot-- > 0;) {
    const at::Tensor& parameter = slots_[slot].parameter.tensor;
    auto open = std::find_if(all_open.begin(), all_open.end(), [&](const Open& candidate) {
      return candidate.device == parameter.device() && candidate.dtype == parameter.scalar_type();
    });
    if (open == all_open.end()) {
      open = all_open.insert(open, {parameter.device(), parameter.scalar_type(), {}});
    }
    open->bucket.slots.push_back(slot);
    open->bytes += static_cast<std::int64_t>(parameter.nbytes());
    if (open->bytes >= (buckets_.empty() ? plan_.first_bucket_bytes : plan_.bucket_bytes)) {
      buckets_.push_back(std::exchange(open->bucket, {}));
      open->bytes = 0;
    }
  }
  for (Open& open : all_open) {
    if (!open.bucket.slots.empty()) buckets_.push_back(std::move(open.bucket));
  }
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    for (const std::size_t slot : buckets_[index].slots) slots_[slot].bucket = index;
    allocate(index);
  }
}

void Reducer::allocate(std::size_t number) {
  Bucket& bucket = buckets_[number];
  const bool is_last = number + 1 == buckets_.size();
  std::int64_t elements = 0;
  for (const std::size_t slot : bucket.slots)
    elements += aligned_elements(slots_[slot].parameter.tensor);
  const auto tail = is_last ? static_cast<std::int64_t>(slots_.size()) + 1 : 0;
  bucket.memory = comm::zeros_registered(
      {elements + tail},
      slots_[bucket.slots.front()].parameter.tensor.options().requires_grad(false),
      stream_of(number));
  if (is_last) tail_ = slice_of(bucket.memory, elements, at::IntArrayRef{tail}, at::IntArrayRef{1});
  std::int64_t offset = 0;
  for (const std::size_t index : bucket.slots) {
    const at::Tensor& parameter = slots_[index].parameter.tensor;
    slots_[index].gradient =
        slice_of(bucket.memory, offset, parameter.sizes(), parameter.strides());
    offset += aligned_elements(parameter);
  }
  bucket.num_pending = bucket.slots.size();
}

void Reducer::install_hooks() {
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    const at::Tensor& parameter = slots_[index].parameter.tensor;
    autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(this, index));
  }
}

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  if (pass_id_ != autograd::get_current_graph_task_id()) begin_pass();
  Slot& slot = slots_[index];
  slot.is_used = true;
  if (pass_ + 1 < plan_.micro_batches) return;
  if (slot.is_ready) return;
  store_gradient(slot);
  launch_ready_buckets();
}

void Reducer::begin_pass() {
  if (is_broken_ || pass_id_ != kNoPass) {
    throw UsageError(
        is_broken_
            ? "a step of this rank was interrupted, and the other ranks have gone on without it"
            : "a backward pass started while another one of the same module had not ended",
        "an exception left an earlier backward(), two run at once, or one runs inside another "
        "(recomputation by hand, which data parallel does not support); end this process");
  }
  pass_id_ = autograd::get_current_graph_task_id();
  if (pass_ + 1 == plan_.micro_batches) {
    buffers_.start();
    tail_.fill_(1);
    at::Tensor sum = tail_.slice(0, -1);
    number_.defined() ? sum.copy_(number_.flatten()) : sum.zero_();
    number_.reset();
  }
  autograd::Engine::get_default_engine().queue_callback([this] { end_pass(); });
}

void Reducer::end_pass() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  pass_id_ = kNoPass;
  if (++pass_ < plan_.micro_batches) return;
  pass_ = 0;
  finish_step();
}

void Reducer::abandon_step() {
  const std::lock_guard lock(mutex_);
  is_broken_ = is_broken_ || (group_.size() > 1 && (pass_ != 0 || pass_id_ != kNoPass));
  pass_id_ = kNoPass;
  pass_ = 0;
  next_bucket_ = 0;
  number_.reset();
  for (Slot& slot : slots_) slot.is_used = slot.is_ready = false;
  for (Bucket& bucket : buckets_) bucket.num_pending = bucket.slots.size();
}

// Copies what autograd accumulated into the bucket, unless it accumulated there already.
void Reducer::store_gradient(Slot& slot) {
  at::Tensor& gradient = slot.parameter.tensor.mutable_grad();
  const bool is_in_place = gradient.defined() && gradient.layout() == at::kStrided &&
                           gradient.is_alias_of(slot.gradient);
  if (!slot.is_used) {
    if (is_in_place) gradient = gradient.clone();  // stays as it was, while its place is exchanged
    slot.gradient.zero_();
    tail_[&slot - slots_.data()].zero_();
  } else if (gradient.layout() != at::kStrided) {
    throw UsageError(join_message("parameter ", slot.parameter.name, " got a gradient of layout ",
                                  gradient.layout(), ", expected a dense one"),
                     "data parallel averages dense gradients; build the embedding without sparse "
                     "gradients");
  } else if (!is_in_place) {
    slot.gradient.copy_(gradient);
  }
  slot.is_ready = true;
  --buckets_[slot.bucket].num_pending;
}

void Reducer::launch_ready_buckets() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].num_pending == 0;
       ++next_bucket_) {
    buckets_[next_bucket_].work = comm::all_reduce_async(
        buckets_[next_bucket_].memory, stream_of(next_bucket_), comm::ReduceOp::kSum,
        join_message("gradient bucket ", next_bucket_));
  }
}

void Reducer::finish_step() {
  // What this rank did not use still takes part, so that all ranks exchange the same buckets in the
  // same order.
  for (Slot& slot : slots_) {
    if (!slot.is_ready) store_gradient(slot);
  }
  launch_ready_buckets();
  for (Bucket& bucket : buckets_) {
    bucket.work.wait();
    bucket.num_pending = bucket.slots.size();
  }
  const at::Tensor tail = tail_.to(at::kCPU, at::kDouble);
  const double* num_ranks_using = tail.const_data_ptr<double>();
  sum_of_step_ = num_ranks_using[slots_.size()];
  const std::int64_t divisor = group_.size() * plan_.micro_batches;
  for (Bucket& bucket : buckets_) {
    // By a tensor: CUDA multiplies with the reciprocal of a number, which is not a true division.
    bucket.memory.div_(at::full({}, divisor, bucket.memory.options()));
  }
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    Slot& slot = slots_[index];
    if (num_ranks_using[index] > 0) slot.parameter.tensor.mutable_grad() = slot.gradient;
    slot.is_used = slot.is_ready = false;
  }
  next_bucket_ = 0;
  buffers_.finish();
}

}  // namespace trireme::detail
