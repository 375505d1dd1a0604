// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/data/reducer.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

namespace trireme::detail {

namespace autograd = torch::autograd;

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
    : plan_(plan),
      group_(std::move(group)),
      parameters_(parameters),
      knows_order_(plan.zero_stage > 0),  // what each rank owns follows the buckets
      buffers_(buffers, group_) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters) slots_.emplace_back().parameter = parameter;
  connect_streams();
  std::vector<std::size_t> reversed(parameters.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const std::vector<BucketLayout> layouts =
      assign_buckets(parameters, reversed, plan_.first_bucket_bytes, plan_.bucket_bytes);
  const at::TensorOptions options = parameters.front().tensor.options().requires_grad(false);
  if (plan_.zero_stage > 0) {
    shards_.emplace(parameters, layouts, group_);
    is_one_device_ = std::all_of(parameters.begin(), parameters.end(), [&](const auto& parameter) {
      return parameter.tensor.device() == options.device();
    });
  }
  // Counts and losses need more than half precision has.
  tail_is_apart_ =
      shards_ || std::any_of(parameters.begin(), parameters.end(),
                             [](const auto& item) { return item.tensor.element_size() < 4; });
  if (tail_is_apart_) {
    tail_ = at::zeros({static_cast<std::int64_t>(slots_.size()) + 1}, options.dtype(at::kFloat));
  }
  make_buckets(layouts);
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

void Reducer::make_buckets(const std::vector<BucketLayout>& layouts) {
  buckets_ = std::vector<Bucket>(layouts.size());
  for (std::size_t number = 0; number < layouts.size(); ++number) {
    Bucket& bucket = buckets_[number];
    for (const BucketLayout::Place& place : layouts[number].places) {
      bucket.slots.push_back(place.tensor);
      slots_[place.tensor].bucket = number;
    }
    bucket.num_pending = bucket.slots.size();
  }
  for (std::size_t number = 0; number < layouts.size(); ++number) {
    if (plan_.zero_stage >= 2 && is_one_device_) {
      borrow(number);
    } else {
      allocate(number, shards_ ? shards_->elements(number) : layouts[number].elements);
    }
    for (const BucketLayout::Place& place : layouts[number].places) {
      const at::Tensor& parameter = slots_[place.tensor].parameter.tensor;
      slots_[place.tensor].gradient =
          slice_of(buckets_[number].memory, place.offset, parameter.sizes(), parameter.strides());
    }
  }
}

// Memory of its own, in the last bucket with the tail; this rank's slice of the sum replaces its
// summand.
void Reducer::allocate(std::size_t number, std::int64_t elements) {
  Bucket& bucket = buckets_[number];
  const at::TensorOptions options =
      slots_[bucket.slots.front()].parameter.tensor.options().requires_grad(false);
  const auto tail = static_cast<std::int64_t>(slots_.size()) + 1;
  const bool has_tail = !tail_is_apart_ && number + 1 == buckets_.size();
  bucket.memory =
      comm::zeros_registered({elements + (has_tail ? tail : 0)}, options, stream_of(number));
  if (has_tail) {
    tail_ = slice_of(bucket.memory, elements, at::IntArrayRef{tail}, at::IntArrayRef{1});
  }
  if (shards_) {
    const std::int64_t slice = shards_->slice_elements(number);
    // Other engines than shared memory refuse input and output that overlap.
    bucket.own = group_.shared_memory() != nullptr
                     ? bucket.memory.narrow(0, group_.rank() * slice, slice)
                     : at::zeros({slice}, options);
  }
}

// Memory that other buckets use too: while it is filled, what was in it before has travelled, and
// two of each stream are under way.
void Reducer::borrow(std::size_t number) {
  Bucket& bucket = buckets_[number];
  const std::size_t period = 2 * streams_.size();
  const at::TensorOptions options =
      slots_[bucket.slots.front()].parameter.tensor.options().requires_grad(false);
  const auto bytes_of = [&](std::size_t other) {
    const at::Tensor& first = slots_[buckets_[other].slots.front()].parameter.tensor;
    return shards_->elements(other) * static_cast<std::int64_t>(first.element_size());
  };
  if (number < period) {
    std::int64_t longest = 0;
    for (std::size_t other = number; other < buckets_.size(); other += period) {
      longest = std::max(longest, bytes_of(other));
    }
    lent_.push_back(comm::zeros_registered({longest}, options.dtype(at::kByte), stream_of(number)));
  } else {
    bucket.before = number - period;
  }
  bucket.memory =
      lent_[number % period].narrow(0, 0, bytes_of(number)).view(options.dtype().toScalarType());
  bucket.own = at::zeros({shards_->slice_elements(number)}, options);
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
  if (!knows_order_) arrivals_.push_back(index);
  make_ready(slot);
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
  if (shards_) {
    check_optimizers();
    shards_->check();
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

// What no optimizer steps would silently stay as it is.
void Reducer::check_optimizers() {
  if (const at::Tensor* untaken = shards_->optimizers().find_untaken()) {
    const auto found = std::ranges::find_if(
        parameters_, [&](const NamedTensor& item) { return item.tensor.is_same(*untaken); });
    for (const Slot& slot : slots_) at::Tensor(slot.parameter.tensor).mutable_grad().reset();
    throw UsageError(join_message("the plan cuts what optimizers step, and parameter ", found->name,
                                  " is in none that it knows"),
                     "call shard(optimizer) on what parallelize returned, for each optimizer, "
                     "before the first backward(); a parameter that is not to be trained takes "
                     "set_requires_grad(false) before parallelize");
  }
}

void Reducer::end_pass() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  pass_id_ = kNoPass;
  if (++pass_ < plan_.micro_batches) return;
  pass_ = 0;
  is_broken_ = true;  // should an exception come out of what follows
  finish_step();
  is_broken_ = false;
}

void Reducer::abandon_step() {
  const std::lock_guard lock(mutex_);
  is_broken_ = is_broken_ || (group_.size() > 1 && (pass_ != 0 || pass_id_ != kNoPass));
  pass_id_ = kNoPass;
  pass_ = 0;
  next_bucket_ = 0;
  number_.reset();
  arrivals_.clear();
  for (Slot& slot : slots_) slot.is_used = slot.is_ready = false;
  for (Bucket& bucket : buckets_) bucket.num_pending = bucket.slots.size();
}

// Its gradient goes into the bucket: at once where the bucket's memory is its own, else when the
// whole bucket is launched.
void Reducer::make_ready(Slot& slot) {
  const at::Tensor& gradient = slot.parameter.tensor.grad();
  if (slot.is_used && gradient.layout() != at::kStrided) {
    throw UsageError(join_message("parameter ", slot.parameter.name, " got a gradient of layout ",
                                  gradient.layout(), ", expected a dense one"),
                     "data parallel averages dense gradients; build the embedding without sparse "
                     "gradients");
  }
  if (!slot.is_used) tail_[&slot - slots_.data()].zero_();
  Bucket& bucket = buckets_[slot.bucket];
  if (lent_.empty()) store_gradient(slot);
  slot.is_ready = true;
  --bucket.num_pending;
}

// Copies what autograd accumulated into the bucket, unless it accumulated there already.
void Reducer::store_gradient(Slot& slot) {
  at::Tensor& gradient = slot.parameter.tensor.mutable_grad();
  const bool is_in_place = gradient.defined() && gradient.is_alias_of(slot.gradient);
  if (!slot.is_used) {
    if (is_in_place) gradient = gradient.clone();  // stays as it was, while its place is exchanged
    slot.gradient.zero_();
  } else if (!is_in_place) {
    slot.gradient.copy_(gradient);
    if (shards_) gradient.reset();  // the optimizer finds its slice elsewhere
  }
}

void Reducer::launch_ready_buckets() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].num_pending == 0;
       ++next_bucket_) {
    launch(next_bucket_);
  }
}

void Reducer::launch(std::size_t number) {
  Bucket& bucket = buckets_[number];
  const comm::Group& stream = stream_of(number);
  const std::string label = join_message("gradient bucket ", number);
  if (!shards_) {
    bucket.work = comm::all_reduce_async(bucket.memory, stream, comm::ReduceOp::kSum, label);
  } else {
    if (!lent_.empty()) {
      if (bucket.before) buckets_[*bucket.before].work.wait();
      for (const std::size_t slot : bucket.slots) store_gradient(slots_[slot]);
    }
    bucket.work =
        comm::reduce_scatter_async(bucket.own, bucket.memory, stream, comm::ReduceOp::kSum, label);
  }
  if (tail_is_apart_ && number + 1 == buckets_.size()) {
    tail_work_ = comm::all_reduce_async(tail_, group_, comm::ReduceOp::kSum, "used parameters");
  }
}

void Reducer::finish_step() {
  // What this rank did not use still takes part, so that all ranks exchange the same buckets in the
  // same order.
  for (Slot& slot : slots_) {
    if (!slot.is_ready) make_ready(slot);
  }
  launch_ready_buckets();
  for (Bucket& bucket : buckets_) {
    bucket.work.wait();
    bucket.num_pending = bucket.slots.size();
  }
  if (tail_is_apart_) tail_work_.wait();
  const at::Tensor tail = tail_.to(at::kCPU, at::kDouble);
  const double* num_ranks_using = tail.const_data_ptr<double>();
  sum_of_step_ = num_ranks_using[slots_.size()];
  hand_out(num_ranks_using);
  for (Slot& slot : slots_) slot.is_used = slot.is_ready = false;
  next_bucket_ = 0;
  buffers_.finish();
  if (!knows_order_) learn_order();
}

// Divides the sums, and gives them to the parameters or to the optimizer's slices.
void Reducer::hand_out(const double* num_ranks_using) {
  const std::int64_t divisor = group_.size() * plan_.micro_batches;
  for (Bucket& bucket : buckets_) {
    const at::Tensor& sum = shards_ ? bucket.own : bucket.memory;
    // By a tensor: CUDA multiplies with the reciprocal of a number, which is not a true division.
    // Half precision has not every whole number above 256.
    const bool is_half = sum.element_size() < 4;
    sum.div_(at::full({}, divisor, sum.options().dtype(is_half ? at::kFloat : sum.scalar_type())));
  }
  if (!shards_) {
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      Slot& slot = slots_[index];
      if (num_ranks_using[index] > 0) slot.parameter.tensor.mutable_grad() = slot.gradient;
    }
    return;
  }
  const auto is_used = [&](std::size_t index) { return num_ranks_using[index] > 0; };
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    shards_->set_gradients(number, buckets_[number].own, is_used);
  }
  shards_->expect_step(is_used);
}

// Fills the buckets in the order in which rank 0 found the gradients ready; those that it did not
// use come last.
void Reducer::learn_order() {
  knows_order_ = true;
  std::vector<bool> has_come(slots_.size(), false);
  for (const std::size_t index : arrivals_) has_come[index] = true;
  for (std::size_t index = slots_.size(); index-- > 0;) {
    if (!has_come[index]) arrivals_.push_back(index);
  }
  const std::vector<std::int64_t> own(arrivals_.begin(), arrivals_.end());
  const at::Tensor order = at::tensor(own);
  comm::broadcast(order, 0, group_);
  arrivals_.assign(order.const_data_ptr<std::int64_t>(),
                   order.const_data_ptr<std::int64_t>() + order.numel());
  std::vector<std::size_t> present;
  for (const Bucket& bucket : buckets_) {
    present.insert(present.end(), bucket.slots.begin(), bucket.slots.end());
  }
  if (present != arrivals_) {
    std::vector<at::Tensor> gradients;
    for (const Slot& slot : slots_) gradients.push_back(slot.gradient);
    make_buckets(
        assign_buckets(parameters_, arrivals_, plan_.first_bucket_bytes, plan_.bucket_bytes));
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      at::Tensor& gradient = slots_[index].parameter.tensor.mutable_grad();
      slots_[index].gradient.copy_(gradients[index]);
      if (gradient.defined() && gradient.is_alias_of(gradients[index])) {
        gradient = slots_[index].gradient;
      }
    }
  }
  arrivals_ = {};
}

}  // namespace trireme::detail
