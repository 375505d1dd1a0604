// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradients/reducer.h>

#include <trireme/base/error.h>
#include <trireme/comm/check_values.h>
#include <trireme/parallel/gradients/sparse_sum.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/any.h>
#include <ATen/ops/real.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace trireme::detail {

namespace autograd = torch::autograd;

namespace {

// Adds the time between its construction and its destruction to `seconds`.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    const auto passed = std::chrono::steady_clock::now() - began_;
    seconds_ += std::chrono::duration<double>(passed).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace

class Reducer::Hook final : public autograd::PostAccumulateGradHook {
 public:
  Hook(Reducer* reducer, std::size_t slot) : reducer_(reducer), slot_(slot) {}
  void operator()(const autograd::Variable&) override { reducer_->on_gradient(slot_); }

 private:
  Reducer* reducer_;  // outlives the hook: its destructor removes all hooks
  std::size_t slot_;
};

Reducer::Reducer(const std::vector<NamedTensor>& parameters, const std::vector<at::Tensor>& buffers,
                 const Plan& plan, const comm::Group& group, std::function<void()> check_module,
                 GradientsCome come)
    : plan_(plan),
      data_groups_(connect_data_groups(plan, group)),
      memories_(memories_of(parameters)),
      summands_(static_cast<double>(plan.micro_batches)),
      buffers_(buffers, group),
      check_module_(std::move(check_module)) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& item : parameters) {
    slots_.push_back({item, item.tensor.scalar_type(), item.tensor.device()});
    // A single rank has all shards, which are offloaded none the less.
    const bool is_cut =
        (data_groups_.shard.size() > 1 || plan_.offload_optimizer) && !item.has_sparse_gradient;
    zero_levels_.push_back(is_cut ? zero_level_of(plan, item.name) : 0);
  }
  std::vector<std::size_t> reversed(parameters.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const std::vector<BucketLayout> layouts = assign(reversed);
  std::vector<BucketLayout> cut;
  std::ranges::copy_if(layouts, std::back_inserter(cut),
                       [](const BucketLayout& layout) { return layout.kind > 0; });
  // Slices are assigned by bucket, so sharded parameters keep their first buckets.
  knows_order_ = !cut.empty();
  if (!cut.empty()) shards_.emplace(parameters, cut, plan_, data_groups_.shard);
  buckets_.emplace(memories_, sums_of(plan_), data_groups_, shards());
  make_buckets(layouts);
  has_hooks_ = come == GradientsCome::kByHooks;
  if (has_hooks_) install_hooks();
}

Reducer::~Reducer() {
  if (!has_hooks_) return;
  for (const Slot& slot : slots_) {
    autograd::impl::set_post_acc_grad_hooks(slot.parameter.tensor, nullptr);
    if (slot.early_hook) slot.parameter.tensor.remove_hook(*slot.early_hook);
  }
}

std::vector<BucketLayout> Reducer::assign(const std::vector<std::size_t>& order) const {
  std::vector<std::size_t> dense;
  std::ranges::copy_if(order, std::back_inserter(dense),
                       [&](std::size_t index) { return !memories_[index].has_sparse_gradient; });
  const std::int64_t bytes = bucket_bytes();
  return assign_buckets(memories_, dense, std::min(plan_.first_bucket_bytes, bytes), bytes,
                        zero_levels_);
}

std::int64_t Reducer::bucket_bytes() const {
  if (plan_.bucket_bytes > 0) return plan_.bucket_bytes;
  std::int64_t all = 0;
  for (const NamedTensor& item : memories_) {
    all += item.tensor.numel() * static_cast<std::int64_t>(item.tensor.element_size());
  }
  constexpr std::int64_t kMiB = 1 << 20;
  return std::clamp(all / 16, kMiB, 25 * kMiB);
}

void Reducer::make_buckets(const std::vector<BucketLayout>& layouts) {
  const auto tail = static_cast<std::int64_t>(slots_.size()) + kNumExtras;
  tail_is_apart_ = has_exchange_ || !buckets_->can_carry_tail(layouts);
  buckets_->fill(layouts, tail_is_apart_ ? 0 : tail);
  tail_ = tail_is_apart_ ? at::zeros({tail}, at::kFloat) : buckets_->tail();
  counts_ = at::zeros({tail}, at::kDouble);
  num_pending_.clear();
  for (std::size_t number = 0; number < buckets_->size(); ++number) {
    num_pending_.push_back(buckets_->members(number).size());
    for (const std::size_t slot : buckets_->members(number)) slots_[slot].bucket = number;
  }
}

void Reducer::install_hooks() {
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    const at::Tensor& parameter = slots_[index].parameter.tensor;
    autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(this, index));
    if (zero_levels_[index] == 0) continue;
    // Removes the placeholder of a sharded gradient before autograd would accumulate into it.
    slots_[index].early_hook = parameter.register_hook(
        [this, index](const at::Tensor& /*gradient*/) { shards_->clear_gradient(index); });
  }
}

void Reducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  has_exchange_ = hook != nullptr;
  buckets_->register_comm_hook(std::move(hook));
  if (has_exchange_ && !tail_is_apart_) {
    tail_is_apart_ = true;
    tail_ = at::zeros(tail_.sizes(), at::kFloat);
  }
}

void Reducer::hold_back(bool on) {
  const std::lock_guard lock(mutex_);
  num_holding_back_ += on ? 1 : -1;
}

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  if (pass_id_ != autograd::get_current_graph_task_id()) begin_pass();
  Slot& slot = slots_[index];
  slot.is_used = true;
  if (is_held_back_ || pass_ + 1 < plan_.micro_batches || slot.is_ready) return;
  if (!knows_order_) arrivals_.push_back(index);
  const Stopwatch stopwatch(exchanges_.this_step);
  make_ready(slot);
  launch_ready_buckets();
}

void Reducer::check_before_step() {
  check_slots();
  if (!shards_) return;
  check_optimizers();
  shards_->check_without_waiting();
}

void Reducer::begin_manual() {
  if (std::exchange(has_begun_manually_, true)) return;
  if (shards_) shards_->check();
  begin_step(/*is_active=*/true);
}

void Reducer::add_complete(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  begin_manual();
  const auto found = std::ranges::find_if(
      slots_, [&](const Slot& slot) { return slot.parameter.tensor.is_same(parameter); });
  if (found == slots_.end() || found->is_ready) return;
  found->is_used = parameter.grad().defined();
  if (!knows_order_) arrivals_.push_back(static_cast<std::size_t>(found - slots_.begin()));
  make_ready(*found);
  launch_ready_buckets();
}

void Reducer::finish_manual(double summands) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  begin_manual();
  for (Slot& slot : slots_) {
    if (!slot.is_ready) slot.is_used = slot.parameter.tensor.grad().defined();
  }
  summands_ = summands;
  finish_step();
  has_begun_manually_ = false;
}

void Reducer::begin_pass() {
  if (is_broken_ || pass_id_ != kNoPass) {
    throw UsageError(
        is_broken_
            ? "a step of this rank was interrupted, and the other ranks have gone on without it"
            : "a backward pass started while another one of the same module had not ended",
        "an exception left an earlier backward(), two run at once, or one runs inside another "
        "(recomputation by hand; trireme::recompute works here); end this process");
  }
  check_slots();
  if (check_module_) check_module_();
  if (shards_) {
    check_optimizers();
    shards_->check();
  }
  pass_id_ = autograd::get_current_graph_task_id();
  is_held_back_ = num_holding_back_ > 0;
  if (!is_held_back_ && pass_ + 1 == plan_.micro_batches) begin_step(/*is_active=*/true);
  autograd::Engine::get_default_engine().queue_callback([this] { end_pass(); });
}

// Starts the exchanges that accompany the gradients: buffers, and the tail's own values.
void Reducer::begin_step(bool is_active) {
  const auto parameters = static_cast<std::int64_t>(slots_.size());
  if (shards_) shards_->clear_gradients();
  if (num_steps_++ % comm::kStepsBetweenChecks == 0 && comm::checks_values()) check_values();
  buffers_.start();
  tail_.fill_(1);
  tail_.narrow(0, parameters + kNumber, 1).zero_();
  if (!tail_is_apart_) put_number();  // else finish_step() does: the host may have to wait for it
  if (!is_active) tail_.narrow(0, parameters + kActiveRanks, 1).zero_();
}

void Reducer::put_number() {
  if (!number_.defined()) return;
  tail_[static_cast<std::int64_t>(slots_.size()) + kNumber].copy_(number_.squeeze());
  number_.reset();
}

void Reducer::check_slots() {
  for (const Slot& slot : slots_) {
    const auto& [name, tensor, has_sparse_gradient] = slot.parameter;
    if (!tensor.requires_grad()) {
      throw UsageError(
          join_message("parameter ", name,
                       " was frozen (requires_grad is false) after parallelize"),
          "freeze parameters before parallelize; make a new Parallelized after a change");
    }
    if (tensor.scalar_type() != slot.dtype || tensor.device() != slot.device) {
      throw UsageError(
          join_message("parameter ", name, " is ", tensor.scalar_type(), " on ", tensor.device(),
                       ", parallelize saw ", slot.dtype, " on ", slot.device),
          "move and cast a module before parallelize");
    }
  }
}

// For TRIREME_CHECK=values. Sharded parameters come from one all-gather, so that only slices that
// several ranks hold (hybrid sharding) are compared.
void Reducer::check_values() const {
  std::vector<NamedTensor> parameters;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (zero_levels_[index] == 0) parameters.push_back(slots_[index].parameter);
  }
  const std::string what = join_message("parameters before step ", num_steps_);
  // Only some ranks make each comparison, so succeed_together() tells its result to all of them.
  succeed_together(
      mesh_.defined() ? mesh_.group() : comm::Group::self(), "compare parameters", [&] {
        check_equal_memories(parameters, data_groups_.all, what);
        succeed_together(data_groups_.all, "compare its slices of parameters", [&] {
          if (!shards_) return;
          check_equal_memories(shards_->own_parts(), data_groups_.replicas, "slices of " + what);
        });
      });
  if (!mesh_.defined()) return;
  succeed_together(data_groups_.all, "compare parameters",
                   [&] { check_equal_on_mesh(parameters, mesh_, what); });
}

// Throws if a sharded parameter has no optimizer: it would silently never change.
void Reducer::check_optimizers() {
  if (const at::Tensor* untaken = shards_->optimizers().find_untaken()) {
    const auto found = std::ranges::find_if(
        slots_, [&](const Slot& slot) { return slot.parameter.tensor.is_same(*untaken); });
    for (const Slot& slot : slots_) at::Tensor(slot.parameter.tensor).mutable_grad().reset();
    throw UsageError(join_message("the plan cuts what optimizers step, and parameter ",
                                  found->parameter.name, " is in none that it knows"),
                     "call shard(optimizer) on what parallelize returned, for each optimizer, "
                     "before the first backward(); a parameter that is not to be trained takes "
                     "set_requires_grad(false) before parallelize");
  }
}

void Reducer::end_pass() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  pass_id_ = kNoPass;
  if (autograd::get_current_node() != nullptr) {
    throw UsageError("a backward pass of the module ran inside another backward pass",
                     "for recomputation call trireme::recompute, which needs no second pass");
  }
  if (is_held_back_ || ++pass_ < plan_.micro_batches) return;
  is_broken_ = true;  // stays true if finish_step() throws
  {
    const Stopwatch stopwatch(exchanges_.this_step);
    finish_step();
  }
  exchanges_ = {.last_step = exchanges_.this_step, .this_step = 0};
  is_broken_ = false;
}

bool Reducer::join_step() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  if (is_broken_ || pass_id_ != kNoPass) {
    throw UsageError("join was called while a backward pass had not ended",
                     "call it after the loop, outside of backward()");
  }
  const bool is_active = std::ranges::any_of(slots_, &Slot::is_used);
  is_broken_ = true;
  begin_step(is_active);
  finish_step();
  is_broken_ = false;
  const auto extras = static_cast<std::int64_t>(slots_.size());
  return counts_.const_data_ptr<double>()[extras + kActiveRanks] > 0;
}

void Reducer::finish_without_backward() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  if (is_broken_) {
    throw UsageError("the exchange of gradients of this rank was interrupted",
                     "the other ranks cannot be served any more; end this process");
  }
  const bool has_begun = pass_id_ != kNoPass && pass_ + 1 == plan_.micro_batches && !is_held_back_;
  is_broken_ = true;
  forget_unsent();
  if (!has_begun) {
    begin_step(/*is_active=*/true);
  } else {
    // Unless the tail was sent with the last bucket already.
    if (tail_is_apart_ || next_bucket_ < buckets_->size()) put_number();
    number_.reset();
  }
  finish_step();
  pass_id_ = kNoPass;
  exchanges_ = {};
  is_broken_ = false;
}

// Forgets the gradients of this step that were not sent yet.
void Reducer::forget_unsent() {
  for (Slot& slot : slots_) {
    const bool is_sent = !slot.parameter.has_sparse_gradient && slot.bucket < next_bucket_;
    if (!is_sent) slot.is_used = slot.is_ready = false;
  }
  for (std::size_t bucket = next_bucket_; bucket < buckets_->size(); ++bucket) {
    num_pending_[bucket] = buckets_->members(bucket).size();
  }
}

std::vector<comm::Group> Reducer::groups() const {
  std::vector<comm::Group> groups = data_groups_.streams;
  groups.insert(groups.end(), data_groups_.shard_streams.begin(), data_groups_.shard_streams.end());
  groups.insert(groups.end(), {data_groups_.all, data_groups_.shard, data_groups_.replicas});
  if (shards_) groups.push_back(shards_->gathers());
  return groups;
}

void Reducer::abandon_step(bool others_take_part) {
  const std::lock_guard lock(mutex_);
  is_broken_ = is_broken_ || (others_take_part && (pass_ != 0 || pass_id_ != kNoPass));
  pass_id_ = kNoPass;
  pass_ = 0;
  next_bucket_ = 0;
  number_.reset();
  exchanges_.this_step = 0;
  arrivals_.clear();
  buckets_->abandon();
  for (Slot& slot : slots_) {
    // The step's passes accumulated here, and the optimizer, which steps slices, will not zero it.
    if (zero_levels_[static_cast<std::size_t>(&slot - slots_.data())] > 0) {
      slot.parameter.tensor.mutable_grad().reset();
    }
    slot.is_used = slot.is_ready = false;
  }
  for (std::size_t number = 0; number < num_pending_.size(); ++number) {
    num_pending_[number] = buckets_->members(number).size();
  }
}

// Marks a gradient as final. It is copied into its bucket now if the bucket has memory of its own,
// and otherwise when the bucket is launched.
void Reducer::make_ready(Slot& slot) {
  slot.is_ready = true;
  // The gradient of an earlier pass may have been set to undefined since.
  slot.is_used = slot.is_used && slot.parameter.tensor.grad().defined();
  if (!slot.is_used) tail_[&slot - slots_.data()].zero_();
  const bool is_sparse = slot.parameter.has_sparse_gradient;
  const at::Tensor& gradient = slot.parameter.tensor.grad();
  if (slot.is_used && (gradient.layout() != at::kStrided) != is_sparse) {
    throw UsageError(
        join_message("parameter ", slot.parameter.name, " got a gradient of layout ",
                     gradient.layout(), ", expected a ", is_sparse ? "sparse" : "dense", " one"),
        is_sparse ? "an embedding with sparse gradients must not share its weight with a layer "
                    "that gives dense ones"
                  : "only torch::nn::Embedding and EmbeddingBag are known to give sparse ones; "
                    "name the parameter in Plan::sparse_gradients");
  }
  if (is_sparse) return;
  if (slot.is_used) redistribute_gradient(slot.parameter.tensor);
  if (!buckets_->is_lent(slot.bucket)) store_gradient(slot);
  --num_pending_[slot.bucket];
}

// Returns the place of a gradient in its bucket, with the layout of the parameter.
at::Tensor Reducer::gradient_at(std::size_t slot) const {
  return as_like(slots_[slot].parameter.tensor, buckets_->place_of(slot));
}

// Copies the gradient that autograd accumulated into the bucket, unless it already lies there.
void Reducer::store_gradient(Slot& slot) {
  const auto index = static_cast<std::size_t>(&slot - slots_.data());
  const at::Tensor& place = buckets_->place_of(index);
  at::Tensor& gradient = slot.parameter.tensor.mutable_grad();
  const bool is_in_place = gradient.defined() && memory_of(gradient).is_alias_of(place);
  if (!slot.is_used) {
    if (is_in_place) gradient = gradient.clone();  // keeps its value while its place is exchanged
    place.zero_();
  } else if (!is_in_place) {
    place.copy_(memory_of(gradient));
    // Free autograd's memory. For sharded parameters, the optimizer's gradient lies elsewhere.
    gradient = buckets_->zero_level(slot.bucket) > 0 ? at::Tensor() : gradient_at(index);
  }
}

void Reducer::launch_ready_buckets() {
  for (; next_bucket_ < num_pending_.size() && num_pending_[next_bucket_] == 0; ++next_bucket_) {
    launch(next_bucket_);
  }
}

void Reducer::launch(std::size_t bucket) {
  if (buckets_->is_lent(bucket)) {
    buckets_->acquire(bucket);
    for (const std::size_t slot : buckets_->members(bucket)) store_gradient(slots_[slot]);
  }
  buckets_->launch(bucket);
}

void Reducer::finish_step() {
  if (shards_) shards_->end_step();
  // Parameters that this rank did not use are exchanged as zeros: all ranks must exchange the same
  // buckets in the same order.
  for (Slot& slot : slots_) {
    if (!slot.is_ready) make_ready(slot);
  }
  launch_ready_buckets();
  if (tail_is_apart_) {
    put_number();
    comm::all_reduce(tail_, data_groups_.all, comm::ReduceOp::kSum, "used parameters");
  }
  if (!tail_is_apart_) buckets_->wait(buckets_->size() - 1);
  counts_.copy_(tail_.is_complex() ? at::real(tail_) : tail_);
  sum_of_step_ = counts_.const_data_ptr<double>()[slots_.size() + kNumber];
  const double by = divisor();
  buckets_->finish(by);
  sum_sparse_gradients(by);
  check_same_use();
  hand_out();
  for (Slot& slot : slots_) slot.is_used = slot.is_ready = false;
  for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    num_pending_[bucket] = buckets_->members(bucket).size();
  }
  pass_ = 0;
  next_bucket_ = 0;
  buffers_.finish();
  if (!knows_order_) learn_order();
}

// Throws if ranks used different parameters of ZeRO level 3. If their bucket was whole anyway, no
// earlier check notices; in a larger module the same code would fail there.
void Reducer::check_same_use() const {
  const double* num_ranks_using = counts_.const_data_ptr<double>();
  const double ranks = data_groups_.all.size();
  std::string names;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (zero_levels_[index] != 3 || num_ranks_using[index] == 0 ||
        num_ranks_using[index] == ranks) {
      continue;
    }
    names += join_message(names.empty() ? "" : ", ", slots_[index].parameter.name, " on ",
                          num_ranks_using[index], " of ", ranks, " ranks");
  }
  if (names.empty()) return;
  throw UsageError(
      "parameters that are cut (ZeRO level 3) got gradients on some ranks alone: " + names,
      kSameOperators);
}

double Reducer::divisor() const {
  if (plan_.gradient_reduction == GradientReduction::kSum) return 1;
  const double* counts = counts_.const_data_ptr<double>();
  const double ranks = plan_.divide_by_active_ranks
                           ? std::max(1.0, counts[slots_.size() + kActiveRanks])
                           : data_groups_.all.size();
  return ranks * summands_;
}

void Reducer::sum_sparse_gradients(double divisor) {
  for (const Slot& slot : slots_) {
    const auto& [name, parameter, has_sparse_gradient] = slot.parameter;
    if (!has_sparse_gradient) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    const at::Tensor sum =
        sum_sparse(slot.is_used ? gradient : at::Tensor(), parameter.sizes(),
                   parameter.options().requires_grad(false), data_groups_.all, divisor);
    if (sum.defined()) gradient = sum;
  }
}

// Returns true if the sum of a gradient has an element other than zero on any rank of its mesh.
bool Reducer::has_come(std::size_t slot) const {
  const at::Tensor any = at::any(buckets_->place_of(slot)).to(at::kCPU, at::kByte);
  const at::Tensor& parameter = slots_[slot].parameter.tensor;
  if (has_layout(parameter)) {
    comm::all_reduce(any, layout_of(parameter).mesh().group(), comm::ReduceOp::kMaximum);
  }
  return any.item<std::uint8_t>() != 0;
}

// Sets the gradients of parameters, or those of the slices that optimizers step.
void Reducer::hand_out() {
  const double* num_ranks_using = counts_.const_data_ptr<double>();
  const auto is_used = [&](std::size_t index) { return num_ranks_using[index] > 0; };
  for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    if (buckets_->zero_level(bucket) > 0) {
      shards_->set_gradients(buckets_->shard(bucket), buckets_->own(bucket), is_used);
      continue;
    }
    for (const std::size_t slot : buckets_->members(bucket)) {
      // A hook may send what it kept of earlier steps, for a parameter that no rank used now.
      if (is_used(slot) || (has_exchange_ && has_come(slot))) {
        slots_[slot].parameter.tensor.mutable_grad() = gradient_at(slot);
      }
    }
  }
  if (shards_) shards_->expect_step(is_used);
}

// Fills the buckets anew in the order in which rank 0's gradients became ready. Parameters that it
// did not use come last.
void Reducer::learn_order() {
  knows_order_ = true;
  std::vector<bool> has_come(slots_.size(), false);
  for (const std::size_t index : arrivals_) has_come[index] = true;
  for (std::size_t index = slots_.size(); index-- > 0;) {
    if (!has_come[index]) arrivals_.push_back(index);
  }
  const std::vector<std::int64_t> own(arrivals_.begin(), arrivals_.end());
  const at::Tensor order = at::tensor(own);
  comm::broadcast(order, 0, data_groups_.all);
  const auto* learned = order.const_data_ptr<std::int64_t>();
  arrivals_ = {};
  std::vector<std::size_t> present;
  for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    const auto& members = buckets_->members(bucket);
    present.insert(present.end(), members.begin(), members.end());
  }
  const std::vector<BucketLayout> layouts = assign({learned, learned + order.numel()});
  std::vector<std::size_t> wanted;
  for (const BucketLayout& layout : layouts) {
    for (const BucketLayout::Place& place : layout.places) wanted.push_back(place.tensor);
  }
  if (present == wanted) return;
  std::vector<at::Tensor> places;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    places.push_back(buckets_->place_of(slot));
  }
  make_buckets(layouts);
  for (const std::size_t slot : wanted) {
    at::Tensor& gradient = slots_[slot].parameter.tensor.mutable_grad();
    const at::Tensor& place = buckets_->place_of(slot);
    place.copy_(places[slot]);
    if (gradient.defined() && memory_of(gradient).is_alias_of(places[slot])) {
      gradient = gradient_at(slot);
    }
  }
}

}  // namespace trireme::detail
